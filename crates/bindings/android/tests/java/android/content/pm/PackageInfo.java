package android.content.pm;

public class PackageInfo {
    public String versionName = "2.1.0";
    public int versionCode = 21;
}
