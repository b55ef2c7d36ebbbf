package android.app;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;

/** Reads the history from the file named by the property "history", with lines of "pid|reason|milliseconds|file with the trace". */
public class ActivityManager {
    public List<ApplicationExitInfo> getHistoricalProcessExitReasons(String packageName, int pid, int max) {
        String file = System.getProperty("history");
        List<ApplicationExitInfo> infos = new ArrayList<>();
        try {
            for (String line : file == null ? new ArrayList<String>() : Files.readAllLines(Paths.get(file))) {
                infos.add(new ApplicationExitInfo(line.split("\\|", -1)));
            }
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
        return infos;
    }
}
