package android.app;

import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;

public final class ApplicationExitInfo {
    private final String[] words;

    ApplicationExitInfo(String[] words) {
        this.words = words;
    }

    public int getPid() {
        return Integer.parseInt(words[0]);
    }

    public int getReason() {
        return Integer.parseInt(words[1]);
    }

    public long getTimestamp() {
        return Long.parseLong(words[2]);
    }

    public int getStatus() {
        return 11;
    }

    public int getImportance() {
        return 100;
    }

    public long getRss() {
        return 4096;
    }

    public long getPss() {
        return 2048;
    }

    public String getDescription() {
        return null;
    }

    public InputStream getTraceInputStream() throws IOException {
        System.out.println("trace of " + words[0]);
        return words[3].isEmpty() ? null : new FileInputStream(words[3]);
    }
}
