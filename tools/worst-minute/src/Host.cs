// Installs Coroner by native functions, and does what the words on the command line say. For .NET and Mono.
using System;
using System.Runtime.InteropServices;

public class Box {
    public int Field;
}

public static class Host {
    [DllImport("host", EntryPoint = "host_install")]
    static extern void Install();

    [DllImport("host", EntryPoint = "host_crash")]
    static extern void Crash();

    [DllImport("host", EntryPoint = "host_report_errors")]
    static extern void ReportErrors();

    static int Read(Box box) {
        return box.Field;
    }

    static int NullReferences() {
        int caught = 0;
        for (int n = 0; n < 20; n++) {
            try {
                Read(null);
            } catch (NullReferenceException) {
                caught++;
            }
        }
        return caught;
    }

    public static int Main(string[] words) {
        Install();
        foreach (string word in words) {
            if (word == "null-references" && NullReferences() != 20) {
                return 5;
            }
            if (word == "errors") {
                ReportErrors();
            }
            if (word == "crash") {
                Crash();
            }
        }
        return 0;
    }
}
