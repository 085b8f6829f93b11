//! Bodies that prove themselves: `<mid> <length of the filling> <16 hex digits of SHA-256> <filling>`.

use sha2::{Digest, Sha256};

/// The body of a message with so many bytes of filling.
pub fn make(mid: &str, filling: usize) -> Vec<u8> {
    let filling: String = mid.chars().cycle().take(if mid.is_empty() { 0 } else { filling }).collect();
    let head = format!("{mid} {}", filling.len());
    format!("{head} {} {filling}", sum(&head, &filling)).into_bytes()
}

/// The mid, and whether the body is what [`make`] made. The mid of a foreign body is its beginning.
pub fn parse(body: &[u8]) -> (String, bool) {
    let text = String::from_utf8_lossy(body);
    let parts: Vec<&str> = text.splitn(4, ' ').collect();
    if let [mid, length, digest, filling] = parts[..] {
        let intact =
            length.parse() == Ok(filling.len()) && digest == sum(&format!("{mid} {length}"), filling);
        return (mid.to_owned(), intact);
    }
    (text.chars().take(40).collect(), false)
}

fn sum(head: &str, filling: &str) -> String {
    let digest = Sha256::new().chain_update(head).chain_update(filling).finalize();
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{make, parse};

    #[test]
    fn every_changed_or_missing_byte_is_noticed() {
        let body = make("r1-2-3", 40);
        assert_eq!(parse(&body), ("r1-2-3".to_owned(), true));
        for at in 0..body.len() {
            let mut changed = body.clone();
            changed[at] ^= 1;
            assert!(!parse(&changed).1, "byte {at}");
            assert!(!parse(&body[..at]).1, "cut at {at}");
        }
    }
}
