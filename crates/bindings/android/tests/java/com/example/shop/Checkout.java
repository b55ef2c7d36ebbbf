package com.example.shop;

/** As that of examples/android, whose C++ it calls. */
final class Checkout {
    static {
        System.loadLibrary("shop");
    }

    private Checkout() {}

    static native int pay(long card);
}
