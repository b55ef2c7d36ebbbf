package com.example.shop;

/** Like the class in examples/android, whose C++ code it calls. */
final class Checkout {
    static {
        System.loadLibrary("shop");
    }

    private Checkout() {}

    static native int pay(long card);
}
