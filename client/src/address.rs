//! Addresses as typed by people or named by servers.

use crate::error::ConfigError;

/// Accepts `host:port`, with `[...]` around an IPv6 address.
pub(crate) fn check_address(address: &str) -> Result<(), ConfigError> {
    let wrong = || ConfigError::Address(address.to_owned());
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let plain = !host.is_empty() && !host.contains([':', '/', ' ', '[', ']', '@']);
    if !(bracketed || plain) || port.parse::<u16>().is_err() {
        return Err(wrong());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for good in ["127.0.0.1:8081", "node-1.example:9876", "[::1]:8081"] {
            assert_eq!(check_address(good), Ok(()), "{good}");
        }
        for bad in ["", "host", "host:", ":80", "::1:8081", "http://host:80", "host:99999"] {
            assert!(check_address(bad).is_err(), "{bad}");
        }
    }
}
