package com.example.shop

import android.app.Activity
import android.os.Bundle
import android.view.View
import android.widget.Button
import android.widget.LinearLayout
import android.widget.TextView
import dev.coroner.Coroner

/** Says how the last run ended, and has a button for each way to die. */
class ShopActivity : Activity() {
    override fun onCreate(state: Bundle?) {
        super.onCreate(state)
        Coroner.addBreadcrumb("shop", "opens", Coroner.Level.INFO)
        val view = LinearLayout(this)
        view.orientation = LinearLayout.VERTICAL
        val text = TextView(this)
        text.text = "the last run: ${Coroner.lastOutcome()} ${Coroner.lastEventId() ?: ""}"
        view.addView(text)
        view.addView(button("crash in C++") { Checkout.pay(0) })
        view.addView(button("uncaught exception") { throw IllegalStateException("the cart is empty") })
        view.addView(button("handled exception") { Coroner.report(IllegalStateException("the card expired")) })
        view.addView(button("does not answer") { Thread.sleep(60_000) })
        setContentView(view)
    }

    private fun button(label: String, act: () -> Unit): Button {
        val button = Button(this)
        button.text = label
        button.setOnClickListener(View.OnClickListener { act() })
        return button
    }
}
