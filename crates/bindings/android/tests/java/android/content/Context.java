package android.content;

import android.app.ActivityManager;
import android.content.pm.PackageManager;
import java.io.File;

public class Context {
    public static final String ACTIVITY_SERVICE = "activity";

    private final File files;

    public Context(File files) {
        this.files = files;
    }

    public File getFilesDir() {
        return files;
    }

    public String getPackageName() {
        return "com.example.shop";
    }

    public PackageManager getPackageManager() {
        return new PackageManager();
    }

    public Object getSystemService(String name) {
        return name.equals(ACTIVITY_SERVICE) ? new ActivityManager() : null;
    }
}
