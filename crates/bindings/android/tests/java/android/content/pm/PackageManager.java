package android.content.pm;

public class PackageManager {
    public static class NameNotFoundException extends Exception {}

    public PackageInfo getPackageInfo(String name, int flags) throws NameNotFoundException {
        if (!name.equals("com.example.shop")) {
            throw new NameNotFoundException();
        }
        return new PackageInfo();
    }
}
