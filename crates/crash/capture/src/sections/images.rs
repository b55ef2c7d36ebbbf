//! Image sections: loaded images are listed before the first walk and written after the crashed
//! thread.

use coroner_report::wire::SectionKind;

use super::SectionResult;
use crate::os::image_encoding;
use crate::run::{ROOM, ReportWriter};
use crate::session::{CrashSession, memory};
use coroner_walk::LiveReader;

/// Lists the currently loaded images.
pub(crate) fn list(session: &mut CrashSession<'_>) {
    if let Some(images) = session.images() {
        // The same way as live backtraces list them.
        images.refresh(&mut LiveReader::Loads(memory()));
    }
}

/// Writes all images, in batches.
pub(crate) fn write(session: &mut CrashSession<'_>) {
    let mut done = 0;
    loop {
        let workspace = &mut *session.workspace;
        let Some(images) = &workspace.images else { return };
        let mut encoder = ReportWriter::payload(&mut workspace.buffer);
        encoder.begin_array();
        let empty = encoder.position();
        let mut rest = images.iter().skip(done).peekable();
        if rest.peek().is_none() {
            break;
        }
        for image in rest {
            if encoder.remaining() < ROOM {
                break;
            }
            if !image_encoding::encode_image(images, image, &mut encoder) {
                if encoder.position() > empty {
                    break;
                }
                // An image that is larger than the whole buffer.
                session.counts.dropped_images = session.counts.dropped_images.saturating_add(1);
            }
            done += 1;
        }
        encoder.end();
        let length = encoder.position();
        session.seal(SectionKind::IMAGES, length);
    }
    let dropped = session.images().map_or(0, |images| images.dropped as u64);
    session.counts.dropped_images = session.counts.dropped_images.saturating_add(dropped);
}

/// Writes the images' own messages about the death.
pub(crate) fn write_annotations(session: &mut CrashSession<'_>) -> SectionResult {
    let workspace = &mut *session.workspace;
    let Some(images) = &workspace.images else { return SectionResult::Empty };
    let mut encoder = ReportWriter::payload(&mut workspace.buffer);
    encoder.begin_array();
    let empty = encoder.position();
    image_encoding::encode_annotations(session.installed, images, &mut encoder);
    if encoder.position() == empty {
        return SectionResult::Empty;
    }
    encoder.end();
    let length = encoder.position();
    session.seal(SectionKind::ANNOTATIONS, length)
}
