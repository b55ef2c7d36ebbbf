//! An exception port that the task had before Coroner, with a handler thread that accepts or
//! refuses exceptions.
//!
//! Message layout, from <mach/mach_exc.defs>, in 4-byte words: header (6), count of port
//! descriptors, two descriptors (3 each), NDR (2), exception, count of codes, codes (2 of 64 bits);
//! with state also flavor, count and words of the state. Reply: header, NDR, return code; with
//! state also flavor, count and state.

use std::ffi::c_int;

/// The form of messages that the port requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `EXCEPTION_DEFAULT`: message 2405.
    Default,
    /// `EXCEPTION_STATE_IDENTITY` with the general registers: message 2407.
    StateIdentity,
}

/// The handler's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Makes the page writable and returns `KERN_SUCCESS`: the thread continues.
    Repaired,
    /// Returns `KERN_FAILURE`.
    Refused,
}

/// A handler to install.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Earlier {
    pub(crate) form: Form,
    pub(crate) answer: Answer,
}

type Port = u32;

unsafe extern "C" {
    static mach_task_self_: Port;
    fn mach_port_allocate(task: Port, right: u32, name: *mut Port) -> c_int;
    fn mach_port_insert_right(task: Port, name: Port, right: Port, disposition: u32) -> c_int;
    fn task_set_exception_ports(task: Port, mask: u32, port: Port, behavior: u32, flavor: c_int) -> c_int;
    fn mach_msg(
        message: *mut u32,
        options: u32,
        send_size: u32,
        receive_limit: u32,
        receive_on: Port,
        timeout: u32,
        notify: Port,
    ) -> c_int;
}

const MACH_PORT_RIGHT_RECEIVE: u32 = 1;
const MACH_MSG_TYPE_MAKE_SEND: u32 = 20;
const EXC_MASK_BAD_ACCESS: u32 = 1 << 1;
const MACH_EXCEPTION_CODES: u32 = 0x8000_0000;
const MACH_SEND_MSG: u32 = 1;
const MACH_RCV_MSG: u32 = 2;
/// `x86_THREAD_STATE64`, `ARM_THREAD_STATE64`.
const STATE: c_int = if cfg!(target_arch = "x86_64") { 4 } else { 6 };

/// Offsets in a request, in words.
const ID: usize = 5;
const EXCEPTION: usize = 15;
const CODES: usize = 17;
const FLAVOR: usize = 21;

impl Earlier {
    /// Creates the port, sets it as the task's port for bad accesses, and starts its handler
    /// thread.
    pub(crate) fn install(self) {
        let (behavior, id) = match self.form {
            Form::Default => (1, 2405),
            Form::StateIdentity => (3, 2407),
        };
        let mut port = 0;
        // SAFETY: calls for this task with local results.
        unsafe {
            let task = mach_task_self_;
            assert_eq!(mach_port_allocate(task, MACH_PORT_RIGHT_RECEIVE, &raw mut port), 0);
            assert_eq!(mach_port_insert_right(task, port, port, MACH_MSG_TYPE_MAKE_SEND), 0);
            let set = task_set_exception_ports(task, EXC_MASK_BAD_ACCESS, port, behavior | MACH_EXCEPTION_CODES, STATE);
            assert_eq!(set, 0);
        }
        std::thread::Builder::new()
            .name("earlier port".into())
            .spawn(move || {
                loop {
                    self.serve(port, id);
                }
            })
            .expect("can't start the earlier port's thread");
    }

    /// Handles one exception.
    fn serve(self, port: Port, id: u32) {
        let mut request = [0_u32; 512];
        // SAFETY: a local buffer.
        let received = unsafe { mach_msg(request.as_mut_ptr(), MACH_RCV_MSG, 0, 2048, port, 0, 0) };
        assert_eq!((received, request[ID]), (0, id), "unexpected message");
        let code = |index: usize| u64::from(request[CODES + index]) | u64::from(request[CODES + index + 1]) << 32;
        print_exception(request[EXCEPTION], code(0));
        let result = match self.answer {
            Answer::Refused => 5,
            Answer::Repaired => {
                let page = code(2) as usize & !(super::conditions::PAGE - 1);
                let access = libc::PROT_READ | libc::PROT_WRITE;
                // SAFETY: the fault's own mapping.
                unsafe { libc::mprotect(page as *mut libc::c_void, super::conditions::PAGE, access) as u32 }
            }
        };
        let mut reply = [0_u32; 512];
        let mut words = 9;
        reply[0] = request[0] & 0x1f;
        reply[2] = request[2];
        reply[ID] = id + 100;
        // NDR: little-endian, ASCII, IEEE floats.
        reply[7] = 1;
        reply[8] = result;
        if self.form == Form::StateIdentity {
            let count = request[FLAVOR + 1] as usize;
            reply[9..11 + count].copy_from_slice(&request[FLAVOR..FLAVOR + 2 + count]);
            words = 11 + count;
        }
        reply[1] = words as u32 * 4;
        // SAFETY: a local buffer.
        let sent = unsafe { mach_msg(reply.as_mut_ptr(), MACH_SEND_MSG, reply[1], 0, 0, 0, 0) };
        assert_eq!(sent, 0, "can't send the reply");
    }
}

/// Prints one line without allocating: `earlier port: exception 1 code 2`.
fn print_exception(exception: u32, code: u64) {
    let mut line = *b"earlier port: exception ? code ?\n";
    line[24] = b'0' + (exception % 10) as u8;
    line[31] = b'0' + (code % 10) as u8;
    // SAFETY: a local buffer.
    unsafe { libc::write(1, line.as_ptr().cast(), line.len()) };
}
