//! The words of a settings string, and its numbers as C++ reads them.

/// Keys, values and the signs between them; white space does not count.
pub(super) fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut word = String::new();
    for sign in text.chars() {
        if matches!(sign, ',' | ':' | '[' | ']') {
            if !word.is_empty() {
                tokens.push(std::mem::take(&mut word));
            }
            tokens.push(sign.to_string());
        } else if !matches!(sign, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c') {
            word.push(sign);
        }
    }
    if !word.is_empty() {
        tokens.push(word);
    }
    tokens
}

/// A whole number as `stoull` reads it: the digits at the front, after a sign, which wraps around. `None` without
/// digits or when it does not fit.
pub(super) fn whole_number(token: &str) -> Option<u64> {
    let (negative, digits) = match token.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, token.strip_prefix('+').unwrap_or(token)),
    };
    let end = digits.find(|sign: char| !sign.is_ascii_digit()).unwrap_or(digits.len());
    let number: u64 = digits[..end].parse().ok()?;
    Some(if negative { number.wrapping_neg() } else { number })
}

/// A decimal number as `stod` reads it: as much of the front as is one.
pub(super) fn number(token: &str) -> Option<f64> {
    let ends = (1..=token.len()).rev().filter(|&end| token.is_char_boundary(end));
    ends.map(|end| &token[..end]).find_map(decimal)
}

/// A decimal number and nothing else.
pub(super) fn decimal(token: &str) -> Option<f64> {
    let digits = token.strip_prefix(['+', '-']).unwrap_or(token);
    digits.starts_with(|sign: char| sign.is_ascii_digit() || sign == '.').then(|| token.parse().ok()).flatten()
}
