package com.example.shop

import android.app.Application
import android.content.Context
import dev.coroner.Coroner

class ShopApplication : Application() {
    /** Before the app's content providers start: nothing of the app runs earlier. */
    override fun attachBaseContext(base: Context) {
        super.attachBaseContext(base)
        // With `.dsn("https://KEY@HOST/PROJECT")` reports go to Sentry; without it to files/coroner/reports.
        Coroner.install(base, Coroner.Options().environment(if (BuildConfig.DEBUG) "debug" else "production"))
        Coroner.setTag("cart", "empty")
    }
}
