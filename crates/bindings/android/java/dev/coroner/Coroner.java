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
 * Reports crashes of native code and of Java, with the stacks of all threads, and delivers the reports at the next launch.
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
 * All methods may be called from any thread, and none throws. Without a successful install they do nothing. C and C++ code of the app
 * uses the same library through {@code coroner.h}.
 */
public final class Coroner {
    private static final String TAG = "coroner";

    /** The previous default handler, called after ours for an uncaught exception. */
    private static volatile Thread.UncaughtExceptionHandler previous;

    private static volatile boolean installed;

    private Coroner() {}

    /** Breadcrumb severity. */
    public enum Level {
        DEBUG,
        INFO,
        WARNING,
        ERROR,
        FATAL
    }

    /** A run's outcome. */
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

    /** An app's choices for {@link #install(Context, Options)}. */
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

        /** Sets the app's version. Default: the manifest's {@code versionName}. */
        public Options version(String version) {
            this.version = version;
            return this;
        }

        /** Sets where the app runs, such as "production" or "beta". */
        public Options environment(String environment) {
            this.environment = environment;
            return this;
        }

        /** Sets the release, by which servers distinguish versions. Default: "PACKAGE@versionName+versionCode". */
        public Options release(String release) {
            this.release = release;
            return this;
        }

        /** Sets the distribution, one of several builds of a release. Default: the manifest's {@code versionCode}. */
        public Options dist(String dist) {
            this.dist = dist;
            return this;
        }

        /**
         * Delivers to a Sentry project, or to a server that implements Sentry's protocol: "https://KEY@HOST/PROJECT". Needs the permission
         * {@code INTERNET}. Without a server, reports are written to the folder {@code reports} in the store.
         */
        public Options dsn(String dsn) {
            this.dsn = dsn;
            return this;
        }

        /**
         * Delivers over OTLP, as OpenTelemetry log records, to a Collector such as "https://otel.example.com:4318"; records go to
         * {@code v1/logs} below it. Needs the permission {@code INTERNET}.
         */
        public Options otlp(String endpoint) {
            this.otlp = endpoint;
            return this;
        }

        /** Sets the headers of OTLP requests: "name=value,name=value", percent-encoded. */
        public Options otlpHeaders(String headers) {
            this.otlpHeaders = headers;
            return this;
        }

        /** Sets whether reports are sent only after {@link #setConsent}. Default: no. */
        public Options requireConsent(boolean require) {
            this.requireConsent = require;
            return this;
        }

        /** Sets the store's directory, which must be private to this app. Default: {@code coroner} in {@link Context#getFilesDir}. */
        public Options storeDir(File directory) {
            this.storeDir = directory;
            return this;
        }
    }

    /** Installs Coroner with the defaults. See {@link #install(Context, Options)}. */
    public static boolean install(Context context) {
        return install(context, new Options());
    }

    /**
     * Installs Coroner: from now on a crash leaves a report in the store. Call it once in each process, as early as possible. It waits for
     * the network only if the last run crashed within two seconds of its launch. Returns false if crashes will not be reported; the
     * reason is logged.
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
                Log.w(TAG, "can't get the app's version", error);
            }
            if (Build.VERSION.SDK_INT >= 30) {
                try {
                    ExitInfos.handOver(context, store);
                } catch (RuntimeException error) {
                    Log.w(TAG, "can't get the exit reasons of earlier processes", error);
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

    /** Returns how the last run ended; {@link Outcome#UNKNOWN} if Coroner is not installed. */
    public static Outcome lastOutcome() {
        String name = installed ? nativeLastOutcome() : null;
        for (Outcome outcome : Outcome.values()) {
            if (outcome.name().equalsIgnoreCase(name)) {
                return outcome;
            }
        }
        return Outcome.UNKNOWN;
    }

    /** Returns the event id of the last run's report, under which servers list it; null if there is no report. */
    public static String lastEventId() {
        return installed ? nativeLastEventId() : null;
    }

    /** Sets a tag, a short string by which reports can be searched; a null value removes it. */
    public static void setTag(String key, String value) {
        if (installed && key != null) {
            nativeSetTag(key, value);
        }
    }

    /** Sets the app's current user; a null id means no user. Name and email may be null. */
    public static void setUser(String id, String name, String email) {
        if (installed) {
            nativeSetUser(id, name, email);
        }
    }

    /** Sets whether the app is in the foreground. Call it from the activities' {@code onStart} and {@code onStop}. */
    public static void setForeground(boolean inForeground) {
        if (installed) {
            nativeSetForeground(inForeground);
        }
    }

    /** Sets a context: related data as a JSON object; null removes it. */
    public static void setContext(String name, String json) {
        if (installed && name != null) {
            nativeSetContext(name, json);
        }
    }

    /** Adds a breadcrumb with the level INFO and no category. */
    public static void addBreadcrumb(String message) {
        addBreadcrumb(null, message, Level.INFO);
    }

    /** Adds a breadcrumb, an event such as "opened the document". The category may be null. */
    public static void addBreadcrumb(String category, String message, Level level) {
        if (installed && message != null) {
            nativeAddBreadcrumb(category, message, (level != null ? level : Level.INFO).ordinal() + 1);
        }
    }

    /** Reports a handled error with its causes and the stacks of all threads. Returns false if no report was written. */
    public static boolean report(Throwable error) {
        return installed && error != null && exception(error, true);
    }

    /** Sets whether the user consents to sending reports; see {@link Options#requireConsent}. The choice is stored. */
    public static void setConsent(boolean given) {
        if (installed) {
            nativeSetConsent(given);
        }
    }

    /** Delivers all reports in the store; waits at most {@code timeoutMs}. Returns whether none is left. Not for the main thread. */
    public static boolean flush(long timeoutMs) {
        return installed && nativeFlush(timeoutMs);
    }

    private static void uncaught(Thread thread, Throwable error) {
        try {
            exception(error, false);
        } catch (Throwable ours) {
            // Ignored: the app's own error matters, and there may be no memory to handle another.
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
            // Report the type without the rest.
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
