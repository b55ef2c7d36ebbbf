package android.util;

public final class Log {
    public static int e(String tag, String text, Throwable error) {
        return w(tag, text, error);
    }

    public static int w(String tag, String text, Throwable error) {
        System.out.println("log: " + tag + ": " + text + ": " + error);
        return 0;
    }
}
