/** Installs Coroner by a native method, and does what the words on the command line say. */
public class Host {
    static native void install();

    static native void crash();

    static native void reportErrors();

    static native void touchGuard();

    int field;

    static int read(Host host) {
        return host.field;
    }

    static int recurse(int depth) {
        return recurse(depth + 1) + 1;
    }

    public static void main(String[] words) {
        System.load(words[0]);
        install();
        for (String word : words) {
            switch (word) {
                case "null-pointers":
                    nullPointers();
                    break;
                case "overflow":
                    try {
                        System.out.println(recurse(0));
                    } catch (StackOverflowError error) {
                        break;
                    }
                    break;
                case "guard":
                    touchGuard();
                    break;
                case "errors":
                    reportErrors();
                    break;
                case "crash":
                    crash();
                    break;
                default:
            }
        }
    }

    static void nullPointers() {
        int caught = 0;
        Host host = new Host();
        for (int n = 0; n < 200_000; n++) {
            try {
                caught += read(n % 10_000 == 9_999 ? null : host);
            } catch (NullPointerException error) {
                caught++;
            }
        }
        if (caught != 20) {
            System.exit(5);
        }
    }
}
