//! Decides which servers are reached without the environment's proxy: `NO_PROXY`, interpreted as in
//! curl and Go.

use std::net::IpAddr;

/// Whether `list` contains `host`, given as in a URL.
pub(crate) fn is_listed(list: &str, host: &str) -> bool {
    let host = plain(host);
    let address: Option<IpAddr> = host.parse().ok();
    let entries = list.split([',', ' ', '\t']).filter(|entry| !entry.is_empty());
    entries.map(plain).any(|entry| match (address, entry.split_once('/')) {
        _ if entry == "*" => true,
        (Some(address), Some((network, bits))) => is_in_network(address, network, bits),
        (Some(address), None) => entry.parse() == Ok(address),
        (None, _) => is_below(&host, entry.trim_start_matches("*.").trim_start_matches('.')),
    })
}

/// Lower-cases a host and removes IPv6 brackets, the final dot of a name and the port.
fn plain(text: &str) -> String {
    let text = match text.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() && (host.ends_with(']') || !host.contains(':')) => host,
        _ => text,
    };
    text.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase()
}

fn is_below(host: &str, domain: &str) -> bool {
    let front = host.strip_suffix(domain).filter(|_| !domain.is_empty());
    front.is_some_and(|front| front.is_empty() || front.ends_with('.'))
}

fn is_in_network(address: IpAddr, network: &str, bits: &str) -> bool {
    let number = |address: IpAddr| match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    let (Ok(network), Ok(bits)) = (network.trim_matches(['[', ']']).parse::<IpAddr>(), bits.parse::<u32>()) else {
        return false;
    };
    let ((address, width), (network, network_width)) = (number(address), number(network));
    // Shifting by all bits leaves nothing to compare.
    let shifted = |number: u128| number.checked_shr(128 - bits.min(128)).unwrap_or(0);
    width == network_width && bits <= width && shifted(address) == shifted(network)
}
