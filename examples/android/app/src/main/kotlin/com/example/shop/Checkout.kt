package com.example.shop

/** What the app does in C++. */
object Checkout {
    init {
        System.loadLibrary("shop")
    }

    @JvmStatic
    external fun pay(card: Long): Int
}
