package android.os;

public class Build {
    public static final String MANUFACTURER = "Acme";
    public static final String BRAND = "acme";
    public static final String MODEL = "Phone \"4\"";
    public static final String ID = "AP2A.240905.003";

    public static class VERSION {
        public static final String RELEASE = "15";
        public static final int SDK_INT = Integer.getInteger("api", 35);
    }
}
