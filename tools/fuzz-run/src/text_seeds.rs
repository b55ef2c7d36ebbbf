//! Seeds for the targets that read text: outbox files, server responses, `/proc`.
//!
//! Also for the dynamic linker's list of images in memory.

use std::path::Path;

use crate::report_seeds::write;

const STATE: &str = r#"{"dsn":"example.com/1","rate_limits":{"":1790000060,"error":1790000600},"discarded":{"cache_overflow":{"error":2}},"sessions":[{"update":{"sid":"abababab-abab-abab-abab-abababababab","did":"1","seq":0,"init":true,"started":"2026-09-21T14:13:20.000000Z","timestamp":"2026-09-21T14:13:20.000000Z","duration":1.5,"status":"exited","errors":0,"attrs":{"release":"app@1","environment":"beta"}},"attempted":true}],"begun":["abababab-abab-abab-abab-abababababab"],"done":["01010101010101010101010101010101"],"consent":true}"#;

const ENVELOPE: &str = concat!(
    r#"{"event_id":"01010101010101010101010101010101","sdk":{"name":"coroner.rust","version":"0.1.0"}}"#,
    "\n",
    r#"{"type":"event","content_type":"application/json","length":156}"#,
    "\n",
    r#"{"event_id":"01010101010101010101010101010101","timestamp":"2026-09-21T14:13:20.000000Z","platform":"native","level":"fatal","sdk":{"name":"","version":""}}"#,
    "\n",
    r#"{"type":"attachment","filename":"log.txt","length":3}"#,
    "\n\0\n1\n",
    r#"{"type":"session"}"#,
    "\n{}\n",
);

/// Writes the seeds.
///
/// # Errors
/// An error if a file can't be written.
pub(crate) fn collect(corpus: &Path) -> anyhow::Result<()> {
    write(corpus, "envelope", "event", ENVELOPE.as_bytes())?;
    write(corpus, "outbox_state", "all", STATE.as_bytes())?;
    let name = "1789999999000-1-1790000900-01010101010101010101010101010101-abababababababababababababababab.envelope";
    write(corpus, "outbox", "one", format!("{name}\n{STATE}\n{ENVELOPE}").as_bytes())?;
    let answers =
        "200\t60:error;session:organization:quota, 2700::key\n429\t\t120\n429\t\tMon, 21 Sep 2026 14:15:20 GMT\n503";
    write(corpus, "server_answer", "each", answers.as_bytes())?;
    let progress = r#"{"attempts":1,"notified":true,"counted":false,"reports":{"0":{"folder":{"state":"delivered"},"sentry":{"state":"retry","not_before":1790000060,"tries":2,"reason":"no network"},"own":{"state":"rejected","reason":"no"}}}}"#;
    write(corpus, "store_notes", "progress", progress.as_bytes())?;
    let last = r#"{"outcome":"crashed","run":"01010101010101010101010101010101","event_id":"02020202020202020202020202020202","began":{"secs_since_epoch":1790000000,"nanos_since_epoch":5},"ran_for":{"secs":1,"nanos":500000000}}"#;
    write(corpus, "store_notes", "last-run", last.as_bytes())?;
    let maps = "5555deadb000-5555deadc000 r-xp 00001000 fd:01 4711      /opt/an app (deleted)\n\
                7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0         [stack]\n\
                ffffffffff600000-ffffffffff601000 --xs 00000000 00:00 0\n";
    write(corpus, "proc_text", "maps", maps.as_bytes())?;
    let stat = "4711 (a (name)) t) S 1 4711 4711 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 123456 1024 0\n";
    write(corpus, "proc_text", "stat", stat.as_bytes())?;
    let status = "Name:\tapp\nThreads:\t3\nSigPnd:\t0000000000000000\nSigBlk:\tfffffffe7ffbfeff\nSigIgn:\t0\n";
    write(corpus, "proc_text", "status", status.as_bytes())?;
    write(corpus, "proc_text", "syscall", b"202 0x7f 0x80 0x2 0x0 0x0 0x0 0x7ffd0 0x7f00\n")?;
    write(corpus, "link_map", "two-images", &link_map())
}

/// The address at which the target places its input.
const AT: u64 = 0x10_0000;

/// Writes the dynamic linker's data structures.
///
/// They are an `r_debug`, two `link_map`s, a name, and the headers and the dynamic section of an
/// image at `AT + 0x200`.
fn link_map() -> Vec<u8> {
    const IMAGE: u64 = AT + 0x200;
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let mut memory = vec![0; 0x400];
    let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
    // Version 2, head, brk, consistent, linker's base, next namespace.
    put(0, &words(&[2, AT + 0x40, 0, 0, 0, 0]));
    let (first, second, name, dynamic) = (AT + 0x40, AT + 0x80, AT + 0xc0, IMAGE + 0x100);
    put(0x40, &words(&[IMAGE, name, dynamic, second, 0]));
    put(0x80, &words(&[0, name + 16, IMAGE, 0, first]));
    put(0xc0, b"/opt/lib/liba.so\0");
    // ELF64, little endian, version 1; a shared object for x86_64; program headers after the file
    // header.
    put(0x200, &[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    put(0x210, &[3, 0, 62, 0, 1, 0, 0, 0]);
    put(0x220, &words(&[64]));
    put(0x234, &[64, 0, 56, 0, 3, 0]);
    let header = |kind: u32, flags: u32, address: u64, size: u64| {
        let mut bytes = [kind.to_le_bytes(), flags.to_le_bytes()].concat();
        bytes.extend(words(&[address, address, address, size, size, 8]));
        bytes
    };
    put(0x240, &header(1, 5, 0, 0x200));
    put(0x278, &header(2, 6, 0x100, 0x20));
    put(0x2b0, &header(4, 4, 0x120, 0x24));
    // A note with a build ID of 20 bytes.
    put(0x320, &[4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0, b'G', b'N', b'U', 0]);
    put(0x330, &[0xab; 20]);
    memory
}
