//! A scanner for C++ text: comments, literals, includes and `__global__` functions.

/// The text with comments removed and spliced lines joined. `empty_literals`: whether to empty
/// literals, too.
pub(super) fn strip_comments(text: &str, empty_literals: bool) -> String {
    let text = text.replace("\\\r\n", "").replace("\\\n", "");
    let (mut stripped, mut rest) = (String::with_capacity(text.len()), text.as_str());
    while let Some(letter) = rest.chars().next() {
        // Each step consumes a piece of `length` bytes and keeps `kept`.
        let line = || &stripped[stripped.rfind('\n').map_or(0, |end| end + 1)..];
        let (length, kept) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), "")
        } else if let Some(inside) = rest.strip_prefix("/*") {
            let length = inside.find("*/").map_or(rest.len(), |end| end + 4);
            // NVRTC sees a new line here.
            (length, if rest[..length].contains('\n') { "\n" } else { " " })
        } else if letter == '<' && include_target(line()).is_some() {
            let length = rest.find(['>', '\n']).unwrap_or(rest.len());
            (length, &rest[..length])
        } else if letter == '"' || letter == '\'' && !separates_digits(line()) {
            let raw = ["R", "u8R", "uR", "UR", "LR"]
                .contains(&word_before(line()))
                .then(|| raw_literal(rest))
                .flatten();
            let length = raw.unwrap_or_else(|| literal(rest, letter));
            (length, if empty_literals { "\"\"" } else { &rest[..length] })
        } else {
            (letter.len_utf8(), &rest[..letter.len_utf8()])
        };
        stripped.push_str(kept);
        rest = &rest[length..];
    }
    stripped
}

/// The rest of an `#include` directive, in a line without comments.
pub(super) fn include_target(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let directive = line.strip_prefix('#').or_else(|| line.strip_prefix("%:"))?;
    directive.trim_start().strip_prefix("include")
}

/// The identifier or number at the end of a line.
fn word_before(line: &str) -> &str {
    line.rsplit(|letter: char| !letter.is_alphanumeric() && !"_'".contains(letter))
        .next()
        .unwrap_or_default()
}

/// Whether an apostrophe after this line is a digit separator.
fn separates_digits(line: &str) -> bool {
    word_before(line).starts_with(|letter: char| letter.is_ascii_digit())
}

/// The length of the literal at the start of a text. An unterminated literal ends with its line.
fn literal(text: &str, quote: char) -> usize {
    let mut letters = text.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => drop(letters.next()),
            '\n' => return at,
            _ if letter == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a raw literal `"mark( ... )mark"`. `None` if it is malformed.
fn raw_literal(text: &str) -> Option<usize> {
    let close = format!("){}\"", &text[1..text.find('(')?]);
    Some(text.find(&close)? + close.len())
}

/// The `__global__` functions of a text: name and parameter list.
pub(super) fn kernels_in(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for (at, mark) in text.match_indices("__global__") {
        let mut rest = &text[at + mark.len()..];
        // The name precedes the first parenthesis that is not an attribute's.
        while let Some(open) = rest.find('(') {
            let name = last_word(&rest[..open]);
            let Some(inside) = balanced(&rest[open..]) else { break };
            if !name.starts_with("__") {
                found.push((name, inside));
                break;
            }
            rest = &rest[open + inside.len() + 2..];
        }
    }
    found
}

/// The text between the parenthesis at the start and its counterpart.
fn balanced(text: &str) -> Option<&str> {
    let mut depth = 0;
    for (at, letter) in text.char_indices() {
        depth += match letter {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        if depth == 0 {
            return Some(&text[1..at]);
        }
    }
    None
}

pub(super) fn split_at_commas(parameters: &str) -> Vec<&str> {
    let (mut pieces, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, letter) in parameters.char_indices() {
        match letter {
            '(' | '<' | '[' | '{' => depth += 1,
            ')' | '>' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                pieces.push(&parameters[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    pieces.push(&parameters[start..]);
    pieces.retain(|piece| !piece.trim().is_empty());
    pieces
}

pub(super) fn last_word(text: &str) -> &str {
    let text = text.split('=').next().unwrap_or_default().trim_end_matches([']', '[']).trim_end();
    text.rsplit(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .next()
        .unwrap_or_default()
}

/// The name in quotes or angle brackets at the start of a text.
pub(super) fn header_name(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let close = match text.chars().next()? {
        '"' => '"',
        '<' => '>',
        _ => return None,
    };
    text[1..].split_once(close).map(|(name, _)| name)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub const KERNELS: &str = "template <class T> __global__ void __launch_bounds__(256, 2) \
                               scale(const T* __restrict__ x,\n  T *out, const int n = 3) { f(x); \
                               }\nextern \"C\" __global__ void empty() {}";

    #[test]
    fn kernels_are_found() {
        let kernels = kernels_in(KERNELS);
        assert_eq!(kernels.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["scale", "empty"]);
        assert!(kernels_in("__global__ void broken(").is_empty());
    }

    #[test]
    fn comments_and_splices_are_removed() {
        let text = "a /* b\n */ c // d\n\"// e\" f\\\ng 1'000 '\\'' \"\\\"\" h";
        assert_eq!(strip_comments(text, false), "a \n c \n\"// e\" fg 1'000 '\\'' \"\\\"\" h");
        assert_eq!(strip_comments(text, true), "a \n c \n\"\" fg 1'000 \"\" \"\" h");
        assert_eq!(strip_comments("U'\"' /* a */ b'/*'", false), "U'\"'   b'/*'");
        assert_eq!(strip_comments("R\"x(a \" /* b)\" )x\" // c", false), "R\"x(a \" /* b)\" )x\" ");
        assert_eq!(strip_comments("PTR\"a\" // (", false), "PTR\"a\" ");
        assert_eq!(strip_comments("R\"a\" // b", false), "R\"a\" ");
        assert_eq!(
            strip_comments("#include <a//b> // c\n1 < 2 // d", false),
            "#include <a//b> \n1 < 2 "
        );
        assert_eq!(header_name("<a"), None);
        assert_eq!(header_name(" \"x.h\" // y"), Some("x.h"));
        assert_eq!(header_name("<x.h>"), Some("x.h"));
        assert_eq!(header_name("NAME"), None);
    }
}
