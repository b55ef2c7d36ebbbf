package dev.coroner;

import android.app.ActivityManager;
import android.app.ApplicationExitInfo;
import android.content.Context;
import android.util.Log;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;

/** The system's exit information about earlier processes of the app. A separate class, because only API level 30 and later can load it. */
final class ExitInfos {
    /** Maximum size of a trace in bytes. Tombstones and ANR traces are smaller. */
    private static final int MAX_TRACE = 16 << 20;

    private ExitInfos() {}

    /** Passes on the exit information of processes whose end is not recorded in the store yet. */
    static void handOver(Context context, String store) {
        ActivityManager manager = (ActivityManager) context.getSystemService(Context.ACTIVITY_SERVICE);
        if (manager == null) {
            return;
        }
        for (ApplicationExitInfo info : manager.getHistoricalProcessExitReasons(null, 0, 0)) {
            if (!Coroner.nativeIsKnown(store, info.getPid(), info.getTimestamp())) {
                Coroner.nativeAddExitInfo(
                        info.getPid(),
                        info.getReason(),
                        info.getStatus(),
                        info.getImportance(),
                        info.getTimestamp(),
                        info.getRss(),
                        info.getPss(),
                        info.getDescription(),
                        trace(info));
            }
        }
    }

    /** Returns the tombstone or the ANR trace; null if there is none. */
    private static byte[] trace(ApplicationExitInfo info) {
        try (InputStream stream = info.getTraceInputStream()) {
            if (stream == null) {
                return null;
            }
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            byte[] buffer = new byte[1 << 16];
            for (int length = stream.read(buffer); length > 0 && bytes.size() < MAX_TRACE; length = stream.read(buffer)) {
                bytes.write(buffer, 0, length);
            }
            return bytes.toByteArray();
        } catch (IOException | RuntimeException error) {
            Log.w("coroner", "can't read the trace of process " + info.getPid(), error);
            return null;
        }
    }
}
