package dev.coroner;

import android.app.ActivityManager;
import android.app.ApplicationExitInfo;
import android.content.Context;
import android.util.Log;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;

/** Why the system ended earlier processes of the app. A class of its own: only API level 30 and later may load it. */
final class ExitInfos {
    /** More is no tombstone, and no trace of an ANR that an app can use. */
    private static final int MAX_TRACE = 16 << 20;

    private ExitInfos() {}

    /** Hands over what the system says of processes whose end that store does not know yet. */
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

    /** The tombstone or the trace of an ANR; null if there is none. */
    private static byte[] trace(ApplicationExitInfo info) {
        try (InputStream stream = info.getTraceInputStream()) {
            if (stream == null) {
                return null;
            }
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            byte[] piece = new byte[1 << 16];
            for (int length = stream.read(piece); length > 0 && bytes.size() < MAX_TRACE; length = stream.read(piece)) {
                bytes.write(piece, 0, length);
            }
            return bytes.toByteArray();
        } catch (IOException | RuntimeException error) {
            Log.w("coroner", "the trace of process " + info.getPid() + " can't be read", error);
            return null;
        }
    }
}
