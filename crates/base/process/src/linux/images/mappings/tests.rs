extern crate std;
use super::*;

fn parse<'p>(text: &[u8], path: &'p mut [u8]) -> (Mapping, &'p [u8]) {
    let mut line = Line::default();
    for byte in text {
        assert!(!line.take(*byte, path));
    }
    assert!(line.take(b'\n', path));
    (line.mapping, &path[..line.name])
}

#[test]
fn lines_of_the_maps_file() {
    let mut path = [0; 64];
    let text = b"7f3a00001000-7f3a00022000 r-xp 00001000 fe:01 137847                     /usr/lib/a b (deleted)";
    let (mapping, path) = parse(text, &mut path);
    assert_eq!((mapping.start, mapping.end, mapping.file_offset), (0x7f3a_0000_1000, 0x7f3a_0002_2000, 0x1000));
    let permissions = mapping.permissions;
    assert!(permissions.read && !permissions.write && permissions.execute && !permissions.shared);
    assert_eq!(path, b"/usr/lib/a b (deleted)");

    let mut path = [0; 64];
    let (mapping, path) = parse(b"7ffd0-7ffd1 ---s 00000000 00:00 0                          [anon:/x]", &mut path);
    assert!(mapping.permissions.is_guard() && mapping.permissions.shared);
    assert_eq!((path, super::path(path)), (&b"[anon:/x]"[..], &b""[..]));
    let mut path = [0; 4];
    assert_eq!(parse(b"1000-2000 rw-p 0 00:00 12 /longer", &mut path).1, b"/lon");
}

#[test]
fn both_ways_of_asking_agree() {
    let mappings = Mappings::open().unwrap();
    let here = lines_of_the_maps_file as *const () as u64;
    let local = 0_u64;
    for address in [here, &raw const local as u64, 0, 1 << 46] {
        let (mut asked, mut read) = ([0; 512], [0; 512]);
        let streamed =
            read_until(mappings.descriptor.as_ref().unwrap().verified().unwrap(), address, &mut read).unwrap();
        assert_eq!(mappings.look_up(address, &mut asked).unwrap(), streamed);
        let length = streamed.map_or(0, |(_, length)| length);
        assert_eq!(asked[..length], read[..length]);
        let found = mappings.at(address).unwrap();
        assert_eq!(found.is_some(), streamed.is_some_and(|(mapping, _)| mapping.contains(address)));
    }
    assert!(mappings.at(here).unwrap().unwrap().permissions.execute);
    let mut path = [0; 512];
    let path = mappings.path_at(here, &mut path).unwrap();
    assert_eq!(path, std::env::current_exe().unwrap().as_os_str().as_encoded_bytes());
    assert_eq!(mappings.at(0), Ok(None), "nothing is mapped at null");
    mappings.close();
}

#[test]
fn the_surroundings_of_an_address_are_described() {
    let mappings = Mappings::open().unwrap();
    // Three pages: the first is inaccessible and the last is unmapped.
    // SAFETY: a fresh mapping, used here alone.
    let start = unsafe {
        let at =
            libc::mmap(std::ptr::null_mut(), 3 << 12, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(at.byte_add(1 << 12), 1 << 12, libc::PROT_READ), 0);
        assert_eq!(libc::munmap(at.byte_add(2 << 12), 1 << 12), 0);
        at as u64
    };
    let around = |address: u64| {
        let mut found = std::vec::Vec::new();
        mappings.around(address, &mut [0; 512], |mapping, name| found.push((*mapping, name.to_vec())));
        assert!(found.is_sorted_by_key(|(mapping, _)| mapping.start));
        found
    };
    let readable = around(start + (1 << 12) + 8);
    assert_eq!(readable.len(), 1);
    assert_eq!((readable[0].0.start, readable[0].0.end), (start + (1 << 12), start + (2 << 12)));
    assert!(readable[0].0.permissions.read);
    // An inaccessible page comes with its neighbours.
    let guard = around(start);
    let place = guard.iter().position(|(mapping, _)| mapping.contains(start)).unwrap();
    assert!(guard[place].0.permissions.is_guard());
    assert_eq!(guard[place + 1].0, readable[0].0);
    // If nothing is mapped there, only the neighbours.
    let gone = around(start + (2 << 12));
    assert!(gone.iter().any(|(mapping, _)| *mapping == readable[0].0), "{gone:?}");
    let below_all = around(8);
    assert!(below_all.len() == 1 && below_all[0].0.start > 8);
    // The stack has a name, and the list is read to its end (the stacks of later threads have no
    // name).
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let stack = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
    let stack = u64::from_str_radix(stack.split('-').next().unwrap(), 16).unwrap();
    assert_eq!(around(stack)[0].1, b"[stack]");
    mappings.close();
}

#[test]
fn the_kept_descriptor_is_used_only_while_it_is_ours() {
    let mappings = Mappings::open().unwrap();
    let number = mappings.kept().unwrap().number();
    let here = lines_of_the_maps_file as *const () as u64;
    // Something else is now at its number: the answer comes from a fresh descriptor.
    let other = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: replaces a descriptor that this test alone uses.
    assert_eq!(unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&other), number) }, number);
    assert!(mappings.kept().is_none());
    assert!(mappings.at(here).unwrap().unwrap().permissions.execute);
    // Nor is another process's descriptor used.
    let of_parent = Mappings::open_by(process_id() + 1).unwrap();
    assert!(of_parent.kept().is_none());
    of_parent.close();
    mappings.close();
    // SAFETY: the number that `close` left, since the file behind it is not ours.
    unsafe { libc::close(number) };
}
