package dev.coroner;

import android.content.Context;
import android.content.pm.PackageInfo;
import android.content.pm.PackageManager;
import android.os.Build;
import android.util.Log;
import java.io.File;
import java.io.PrintWriter;
import java.io.StringWriter;

/**
 * Records how an app dies, of native code and of Java, for every thread, and delivers the report at the next launch.
 *
 * <pre>
 * public class ShopApplication extends Application {
 *     protected void attachBaseContext(Context base) {
 *         super.attachBaseContext(base);
 *         Coroner.install(base, new Coroner.Options().dsn("https://KEY@HOST/PROJECT"));
 *     }
 * }
 * </pre>
 *
 * All methods may be called from any thread, and none throws. Without a successful install they do nothing. The app's C and C++ use
 * the same Coroner by {@code coroner.h}.
 */
public final class Coroner {
    private static final String TAG = "coroner";

    /** What is called next for an exception that nobody catches. */
    private static volatile Thread.UncaughtExceptionHandler previous;

    private static volatile boolean installed;

    private Coroner() {}

    /** How grave a breadcrumb is. */
    public enum Level {
        DEBUG,
        INFO,
        WARNING,
        ERROR,
        FATAL
    }

    /** How the last run of the app ended. */
    public enum Outcome {
        FIRST_LAUNCH,
        CLEAN_EXIT,
        TERMINATED,
        CRASHED,
        HUNG,
        UNINSTALLED,
        OUT_OF_MEMORY,
        ENDED_BY_USER,
        ENDED_BY_SYSTEM,
        ENDED_BY_SIGNAL,
        UNKNOWN
    }

    /** What an app decides before {@link #install(Context, Options)}. */
    public static final class Options {
        private String version;
        private String environment;
        private String release;
        private String dist;
        private String dsn;
        private String otlp;
        private String otlpHeaders;
        private boolean requireConsent;
        private File storeDir;

        /** The app's version. Default: {@code versionName} of its manifest. */
        public Options version(String version) {
            this.version = version;
            return this;
        }

        /** Where the app runs, such as "production" or "beta". */
        public Options environment(String environment) {
            this.environment = environment;
            return this;
        }

        /** The release, by which servers distinguish versions. Default: "PACKAGE@versionName+versionCode". */
        public Options release(String release) {
            this.release = release;
            return this;
        }

        /** One of several builds of a release. Default: {@code versionCode} of the app's manifest. */
        public Options dist(String dist) {
            this.dist = dist;
            return this;
        }

        /**
         * Delivers to that project of Sentry, or of a server that speaks its protocol: "https://KEY@HOST/PROJECT". It needs the permission
         * {@code INTERNET}. Default: to the folder {@code reports} in the store.
         */
        public Options dsn(String dsn) {
            this.dsn = dsn;
            return this;
        }

        /**
         * Delivers by OTLP, as OpenTelemetry log records, to the Collector at that address ("https://otel.example.com:4318"; records go to
         * {@code v1/logs} below it). It needs the permission {@code INTERNET}.
         */
        public Options otlp(String endpoint) {
            this.otlp = endpoint;
            return this;
        }

        /** Headers that go with each request by OTLP: "name=value,name=value", percent-encoded. */
        public Options otlpHeaders(String headers) {
            this.otlpHeaders = headers;
            return this;
        }

        /** Whether nothing is sent before {@link #setConsent}. Default: no. */
        public Options requireConsent(boolean require) {
            this.requireConsent = require;
            return this;
        }

        /** The store's directory, of this app only. Default: {@code coroner} in {@link Context#getFilesDir}. */
        public Options storeDir(File directory) {
            this.storeDir = directory;
            return this;
        }
    }

    /** Installs Coroner with the defaults: {@link #install(Context, Options)}. */
    public static boolean install(Context context) {
        return install(context, new Options());
    }

    /**
     * Installs Coroner: from here on a crash leaves a report in the store. Call it once in each process, as early as can be. It waits for
     * no network, unless the last run crashed within two seconds. Returns false if crashes will not be reported; logcat says why.
     */
    public static synchronized boolean install(Context context, Options options) {
        if (installed) {
            return true;
        }
        try {
            System.loadLibrary("coroner_android");
            String app = context.getPackageName();
            File directory = options.storeDir != null ? options.storeDir : new File(context.getFilesDir(), "coroner");
            String store = directory.getPath();
            String version = options.version;
            String release = options.release;
            String dist = options.dist;
            try {
                PackageInfo info = context.getPackageManager().getPackageInfo(app, 0);
                String build = Integer.toString(info.versionCode);
                version = version != null ? version : info.versionName;
                release = release != null ? release : app + '@' + version + '+' + build;
                dist = dist != null ? dist : build;
            } catch (PackageManager.NameNotFoundException | RuntimeException error) {
                Log.w(TAG, "the app's version is not known", error);
            }
            if (Build.VERSION.SDK_INT >= 30) {
                try {
                    ExitInfos.handOver(context, store);
                } catch (RuntimeException error) {
                    Log.w(TAG, "the system says nothing of earlier processes", error);
                }
            }
            installed = nativeInstall(
                    app, store, version, options.environment, release, dist, options.dsn, options.otlp, options.otlpHeaders,
                    options.requireConsent);
        } catch (LinkageError | RuntimeException error) {
            Log.e(TAG, "crashes will not be reported", error);
        }
        if (installed) {
            nativeSetDevice(Build.MANUFACTURER, Build.BRAND, Build.MODEL, Build.ID, Build.VERSION.RELEASE, Build.VERSION.SDK_INT);
            previous = Thread.getDefaultUncaughtExceptionHandler();
            Thread.setDefaultUncaughtExceptionHandler(Coroner::uncaught);
        }
        return installed;
    }

    /** How the last run ended; {@link Outcome#UNKNOWN} without an install. */
    public static Outcome lastOutcome() {
        String name = installed ? nativeLastOutcome() : null;
        for (Outcome outcome : Outcome.values()) {
            if (outcome.name().equalsIgnoreCase(name)) {
                return outcome;
            }
        }
        return Outcome.UNKNOWN;
    }

    /** The id under which a server shows the report of the last run; null if it left none. */
    public static String lastEventId() {
        return installed ? nativeLastEventId() : null;
    }

    /** Sets a tag, by which reports can be searched; a null value removes it. */
    public static void setTag(String key, String value) {
        if (installed && key != null) {
            nativeSetTag(key, value);
        }
    }

    /** Sets who is using the app; a null id: nobody. The others may be null. */
    public static void setUser(String id, String name, String email) {
        if (installed) {
            nativeSetUser(id, name, email);
        }
    }

    /** Says whether the app is in front, from its activities' {@code onStart} and {@code onStop}: reports say so. */
    public static void setForeground(boolean inForeground) {
        if (installed) {
            nativeSetForeground(inForeground);
        }
    }

    /** Sets what belongs together, as the text of a JSON object; null removes it. */
    public static void setContext(String name, String json) {
        if (installed && name != null) {
            nativeSetContext(name, json);
        }
    }

    /** Notes what the app does, with the level INFO and no category. */
    public static void addBreadcrumb(String message) {
        addBreadcrumb(null, message, Level.INFO);
    }

    /** Notes what the app does; the category may be null. */
    public static void addBreadcrumb(String category, String message, Level level) {
        if (installed && message != null) {
            nativeAddBreadcrumb(category, message, (level != null ? level : Level.INFO).ordinal() + 1);
        }
    }

    /** Reports an error that the app has handled: all threads, and the error with its causes. False if there is no report. */
    public static boolean report(Throwable error) {
        return installed && error != null && exception(error, true);
    }

    /** What the user says to reports being sent, where {@link Options#requireConsent} or before; it is remembered. */
    public static void setConsent(boolean given) {
        if (installed) {
            nativeSetConsent(given);
        }
    }

    /** Delivers what is in the store and waits for it, at most so long. Says whether nothing is left. Not for the main thread. */
    public static boolean flush(long timeoutMs) {
        return installed && nativeFlush(timeoutMs);
    }

    private static void uncaught(Thread thread, Throwable error) {
        try {
            exception(error, false);
        } catch (Throwable ours) {
            // The app's own error is the one that counts; there may be no memory for another one.
        }
        Thread.UncaughtExceptionHandler next = previous;
        if (next != null) {
            next.uncaughtException(thread, error);
        }
    }

    private static boolean exception(Throwable error, boolean isCaught) {
        String message = null;
        String trace = null;
        try {
            message = error.getMessage();
            StringWriter text = new StringWriter();
            error.printStackTrace(new PrintWriter(text, true));
            trace = text.toString();
        } catch (Throwable inTheErrorsOwnCode) {
            // Its type is known all the same.
        }
        return nativeException(error.getClass().getName(), message, trace, isCaught);
    }

    static native void nativeAddExitInfo(
            int pid, int reason, int status, int importance, long timestamp, long rss, long pss,
            String description, byte[] trace);

    static native boolean nativeIsKnown(String store, int pid, long timestamp);

    private static native boolean nativeInstall(
            String app, String store, String version, String environment, String release, String dist, String dsn,
            String otlp, String otlpHeaders, boolean requireConsent);

    private static native String nativeLastOutcome();

    private static native String nativeLastEventId();

    private static native void nativeSetDevice(
            String manufacturer, String brand, String model, String build, String release, int apiLevel);

    private static native void nativeSetForeground(boolean inForeground);

    private static native void nativeSetTag(String key, String value);

    private static native void nativeSetUser(String id, String name, String email);

    private static native void nativeSetContext(String name, String json);

    private static native void nativeAddBreadcrumb(String category, String message, int level);

    private static native boolean nativeException(
            String type, String message, String stackTrace, boolean isCaught);

    private static native void nativeSetConsent(boolean given);

    private static native boolean nativeFlush(long timeoutMs);
}
