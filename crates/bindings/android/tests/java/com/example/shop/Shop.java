package com.example.shop;

import android.content.Context;
import dev.coroner.Coroner;
import java.io.File;

/** An app that looks to Coroner as if it ran on Android: Shop DIRECTORY ACT. */
public final class Shop {
    public static void main(String[] words) {
        // Like Android's runtime: the first handler ends the process.
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            System.out.println("uncaught: " + thread.getName() + ": " + error);
            Runtime.getRuntime().halt(10);
        });
        Context context = new Context(new File(words[0]));
        Coroner.Options options = new Coroner.Options().environment("test");
        options.otlp(System.getProperty("otlp")).otlpHeaders("api-key=of%20mine");
        System.out.println("installed: " + Coroner.install(context, options));
        Coroner.setForeground(true);
        System.out.println("outcome: " + Coroner.lastOutcome() + " " + (Coroner.lastEventId() != null));
        Coroner.setTag("cart", "3 \u00e4pples");
        Coroner.setTag("gone", "x");
        Coroner.setTag("gone", null);
        Coroner.setUser("42", "Ann", null);
        Coroner.setContext("order", "{\"number\": 7}");
        Coroner.addBreadcrumb("shop", "opens", Coroner.Level.WARNING);
        switch (words[1]) {
            case "uncaught":
                Thread thread = new Thread(Shop::fails, "checkout");
                thread.start();
                try {
                    thread.join();
                } catch (InterruptedException error) {
                    throw new IllegalStateException(error);
                }
                break;
            case "native":
                Checkout.pay(0);
                break;
            case "handled":
                try {
                    fails();
                } catch (IllegalStateException error) {
                    System.out.println("reported: " + Coroner.report(error));
                }
                System.out.println("flushed: " + Coroner.flush(30_000));
                break;
            default:
                System.out.println("flushed: " + Coroner.flush(30_000));
        }
    }

    private static void fails() {
        try {
            total(null);
        } catch (NullPointerException error) {
            throw new IllegalStateException("the cart is empty", error);
        }
    }

    private static int total(int[] prices) {
        return prices.length;
    }
}
