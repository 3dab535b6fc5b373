//! The necessary subset of Redis' protocol: commands as arrays of bytes, and all kinds of replies.

use crate::lane::Error;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Number(i64),
    Text(Vec<u8>),
    Nothing,
    List(Vec<Value>),
    Error(String),
}

/// Appends a command.
pub(super) fn put(out: &mut Vec<u8>, words: &[&[u8]]) {
    head(out, b'*', words.len());
    for word in words {
        head(out, b'$', word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

fn head(out: &mut Vec<u8>, kind: u8, number: usize) {
    out.push(kind);
    out.extend_from_slice(number.to_string().as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// The first reply in these bytes and its length; `None` until it is complete.
///
/// # Errors
/// The bytes are not a reply.
pub(super) fn first(bytes: &[u8]) -> Result<Option<(Value, usize)>, Error> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        return Ok(None);
    };
    let (Some(kind), rest) = (bytes.first(), end + 2) else {
        return Ok(None);
    };
    let line = std::str::from_utf8(&bytes[1..end])?;
    Ok(match kind {
        b':' => Some((Value::Number(line.parse()?), rest)),
        b'+' => Some((Value::Text(line.as_bytes().to_vec()), rest)),
        b'-' => Some((Value::Error(line.to_owned()), rest)),
        b'$' => match usize::try_from(line.parse::<i64>()?) {
            Err(_) => Some((Value::Nothing, rest)),
            Ok(length) => bytes
                .get(rest..rest + length + 2)
                .map(|text| (Value::Text(text[..length].to_vec()), rest + length + 2)),
        },
        b'*' => {
            let (mut list, mut at) = (Vec::new(), rest);
            for _ in 0..line.parse::<i64>()?.max(0) {
                let Some((value, length)) = first(&bytes[at..])? else {
                    return Ok(None);
                };
                list.push(value);
                at += length;
            }
            Some((Value::List(list), at))
        }
        other => return Err(format!("a reply that begins with {other}").into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_parsed_once_it_is_complete() {
        let bytes = b"*3\r\n$7\r\nmessage\r\n:42\r\n$-1\r\n+OK\r\n";
        let list = vec![
            Value::Text(b"message".to_vec()),
            Value::Number(42),
            Value::Nothing,
        ];
        let length = bytes.len() - 5;
        assert_eq!(first(bytes).unwrap(), Some((Value::List(list), length)));
        for cut in 0..length {
            assert_eq!(first(&bytes[..cut]).unwrap(), None, "{cut}");
        }
        assert!(first(b"?\r\n").is_err());
    }

    #[test]
    fn a_command_is_an_array() {
        let mut out = Vec::new();
        put(&mut out, &[b"GET", b"a"]);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n");
    }
}
