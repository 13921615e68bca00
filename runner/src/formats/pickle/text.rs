//! How pickles spell numbers and strings. Nothing here makes more than twice the bytes that it is given.

/// A decimal integer, of which Python 2 wrote some with an L. One that is too long for an `i128` is taken for the largest.
pub(super) fn decimal(text: &[u8]) -> Option<i128> {
    let text = text.strip_suffix(b"L").unwrap_or(text);
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(std::str::from_utf8(text).ok()?.parse().unwrap_or(i128::MAX))
}

/// A little-endian integer in two's complement. One that is too long for an `i128` is taken for the largest.
pub(super) fn little_endian(bytes: &[u8]) -> i128 {
    let negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 16];
    match wide.get_mut(..bytes.len()) {
        Some(low) => {
            low.copy_from_slice(bytes);
            i128::from_le_bytes(wide)
        }
        None => i128::MAX,
    }
}

pub(super) fn float(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// What `repr` of Python 2 made of a `str`.
pub(super) fn unquoted(text: &[u8]) -> Option<Vec<u8>> {
    let quote = *text.first().filter(|quote| matches!(quote, b'\'' | b'"'))?;
    let mut rest = text.get(1..)?.strip_suffix(&[quote])?;
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let (&escape, after) = rest.split_first()?;
        rest = match escape {
            b'x' => {
                bytes.push(hex(after.get(..2)?).and_then(|code| u8::try_from(code).ok())?);
                after.get(2..)?
            }
            b'0'..=b'7' => {
                let len = rest.iter().take(3).take_while(|digit| matches!(digit, b'0'..=b'7')).count();
                let (digits, after) = rest.split_at_checked(len)?;
                let code = digits.iter().fold(0, |code, digit| code << 3 | u32::from(digit - b'0'));
                // Python, too, drops the ninth bit.
                bytes.push(code as u8);
                after
            }
            _ => {
                match plain_escape(escape) {
                    Some(byte) => bytes.push(byte),
                    // What is no escape stands for itself.
                    None => bytes.extend_from_slice(&[b'\\', escape]),
                }
                after
            }
        };
    }
    Some(bytes)
}

fn plain_escape(escape: u8) -> Option<u8> {
    Some(match escape {
        b'\\' | b'\'' | b'"' => escape,
        b'a' => 7,
        b'b' => 8,
        b't' => b'\t',
        b'n' => b'\n',
        b'v' => 11,
        b'f' => 12,
        b'r' => b'\r',
        _ => return None,
    })
}

/// Python's `raw-unicode-escape`: Latin-1 with `\u1234` and `\U00012345`.
pub(super) fn raw_unicode(text: &[u8]) -> Option<String> {
    let mut string = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            string.push(char::from(byte));
            continue;
        }
        let len = match rest.first() {
            Some(b'u') => 4,
            Some(b'U') => 8,
            // A backslash takes the next byte with it, which thereby begins no escape.
            other => {
                string.push('\\');
                string.extend(other.map(|&byte| char::from(byte)));
                rest = rest.get(1..).unwrap_or_default();
                continue;
            }
        };
        string.push(char::from_u32(hex(rest.get(1..=len)?)?)?);
        rest = rest.get(len + 1..)?;
    }
    Some(string)
}

/// Text as Latin-1.
pub(super) fn latin1(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|char| u8::try_from(char).ok()).collect()
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |code, &digit| Some(code << 4 | char::from(digit).to_digit(16)?))
}
