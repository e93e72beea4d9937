//! JSON numbers as ECMAScript prints them, and whether the printed form has the same value.
//!
//! RFC 8785 prints the double nearest to a number, so two different amounts become equal where doubles are
//! too coarse. Each number therefore also reports whether its decimal value was preserved exactly.

/// No double needs more significant digits than this to differ from its neighbours.
const MAX_SHORTEST_DIGITS: usize = 17;
/// Any number of this many digits fits into 64 bits.
const MAX_HELD_DIGITS: usize = 19;
/// Any decimal with at most this many significant digits is the shortest decimal of its double,
/// because no two such decimals share one.
const ALWAYS_EXACT_DIGITS: usize = 15;
/// Decimal exponents (of the first digit) at which doubles have their full precision.
const FULL_PRECISION: std::ops::RangeInclusive<i64> = -307..=307;
/// Exponents are kept below this, far beyond any double and far from overflow.
const MAX_EXPONENT: i64 = 1 << 40;

/// A number at the start of an input.
pub(super) struct Scanned {
    /// Its length in the input, in bytes.
    pub(super) length: usize,
    /// Whether the printed number has exactly the decimal value that was read.
    pub(super) exact: bool,
}

/// Parses the number at the start of `input` and appends its ECMAScript form to `out`.
///
/// `None` if there is no number, or none that a double can represent.
pub(super) fn canonicalise(input: &[u8], out: &mut Vec<u8>) -> Option<Scanned> {
    let token = Token::scan(input)?;
    let length = token.length;
    if token.is_integer && token.integer.len() <= ALWAYS_EXACT_DIGITS {
        // By far the commonest number is its own canonical form; only a zero loses its sign.
        let text = if token.integer == b"0" {
            token.integer
        } else {
            &input[..length]
        };
        out.extend_from_slice(text);
        return Some(Scanned {
            length,
            exact: true,
        });
    }
    let decimal = token.decimal();
    if let Some(Decimal { count: 0, .. }) = decimal {
        out.push(b'0');
        return Some(Scanned {
            length,
            exact: true,
        });
    }
    if let Some(decimal) = &decimal
        && decimal.count <= ALWAYS_EXACT_DIGITS
        && FULL_PRECISION.contains(&(decimal.point - 1))
    {
        decimal.print(token.negative, out);
        return Some(Scanned {
            length,
            exact: true,
        });
    }
    let value: f64 = str::from_utf8(&input[..length]).ok()?.parse().ok()?;
    if !value.is_finite() {
        return None;
    }
    if value == 0.0 {
        out.push(b'0');
        return Some(Scanned {
            length,
            exact: false,
        });
    }
    let shortest = Decimal::shortest(value)?;
    let exact = decimal == Some(shortest);
    if exact && token.is_printed(&shortest) {
        out.extend_from_slice(&input[..length]);
    } else {
        shortest.print(token.negative, out);
    }
    Some(Scanned { length, exact })
}

/// The parts of a number in JSON grammar.
struct Token<'a> {
    negative: bool,
    integer: &'a [u8],
    fraction: &'a [u8],
    exponent: i64,
    is_integer: bool,
    has_exponent: bool,
    length: usize,
}

impl<'a> Token<'a> {
    fn scan(input: &'a [u8]) -> Option<Token<'a>> {
        let negative = input.first() == Some(&b'-');
        let start = usize::from(negative);
        let mut end = match input.get(start)? {
            b'0' => start + 1,
            b'1'..=b'9' => digits_end(input, start + 1),
            _ => return None,
        };
        let integer = &input[start..end];
        let integer_end = end;
        let mut fraction: &[u8] = &[];
        if input.get(end) == Some(&b'.') {
            let from = end + 1;
            end = digits_end(input, from);
            fraction = &input[from..end];
            if fraction.is_empty() {
                return None;
            }
        }
        let mut exponent = 0;
        let mantissa_end = end;
        if let Some(b'e' | b'E') = input.get(end) {
            let sign = input.get(end + 1);
            let from = end + 1 + usize::from(matches!(sign, Some(b'+' | b'-')));
            end = digits_end(input, from);
            let magnitude = input[from..end].iter().fold(0, |n: i64, d| {
                (n * 10 + i64::from(d - b'0')).min(MAX_EXPONENT)
            });
            if end == from {
                return None;
            }
            exponent = if sign == Some(&b'-') {
                -magnitude
            } else {
                magnitude
            };
        }
        let is_integer = end == integer_end;
        Some(Token {
            negative,
            integer,
            fraction,
            exponent,
            is_integer,
            has_exponent: end != mantissa_end,
            length: end,
        })
    }

    /// The value without leading and trailing zeros; `None` if it has more digits than any double needs.
    fn decimal(&self) -> Option<Decimal> {
        let zeros = |digits: &[u8]| digits.iter().take_while(|digit| **digit == b'0').count();
        let mut leading = zeros(self.integer);
        let (mut whole, mut part) = (&self.integer[leading..], self.fraction);
        if whole.is_empty() {
            let more = zeros(part);
            leading += more;
            part = &part[more..];
        }
        // Trailing zeros do not count as digits; only a number with very many digits is checked for them.
        if whole.len() + part.len() > MAX_HELD_DIGITS {
            part = without_zeros(part);
            if part.is_empty() {
                whole = without_zeros(whole);
            }
            if whole.len() + part.len() > MAX_SHORTEST_DIGITS {
                return None;
            }
        }
        let mut digits = 0;
        for digit in whole.iter().chain(part) {
            digits = digits * 10 + u64::from(digit - b'0');
        }
        if digits == 0 {
            return Some(Decimal::default());
        }
        let mut count = whole.len() + part.len();
        while digits % 10 == 0 {
            digits /= 10;
            count -= 1;
        }
        let before_point = i64::try_from(self.integer.len()).ok()? - i64::try_from(leading).ok()?;
        (count <= MAX_SHORTEST_DIGITS).then_some(Decimal {
            digits,
            count,
            point: before_point + self.exponent,
        })
    }

    /// Whether the number, whose value is `decimal`, is already written as ECMAScript prints it.
    fn is_printed(&self, decimal: &Decimal) -> bool {
        !self.has_exponent
            && (-5..=21).contains(&decimal.point)
            && (self.is_integer || self.fraction.last() != Some(&b'0'))
    }
}

/// `0.DIGITS` times ten to the `point`, with neither leading nor trailing zeros.
#[derive(Clone, Copy, Default, PartialEq)]
struct Decimal {
    digits: u64,
    count: usize,
    point: i64,
}

impl Decimal {
    /// The shortest decimal that rounds to `value`, which is finite and not zero. Of two equally near ones,
    /// the even one, as in ECMAScript.
    fn shortest(value: f64) -> Option<Decimal> {
        let mut buffer = ryu::Buffer::new();
        Token::scan(buffer.format_finite(value.abs()).as_bytes())?.decimal()
    }

    /// `Number::toString` of ECMAScript, whose `n` is `point` here.
    fn print(&self, negative: bool, out: &mut Vec<u8>) {
        let mut buffer = [0; MAX_HELD_DIGITS];
        let digits = &mut buffer[..self.count];
        let mut rest = self.digits;
        for place in digits.iter_mut().rev() {
            // A remainder by ten is a digit.
            *place = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let digits = &*digits;
        if negative {
            out.push(b'-');
        }
        match usize::try_from(self.point) {
            Ok(point @ 1..=21) if point >= digits.len() => {
                out.extend_from_slice(digits);
                out.resize(out.len() + point - digits.len(), b'0');
            }
            Ok(point @ 1..=21) => {
                out.extend_from_slice(&digits[..point]);
                out.push(b'.');
                out.extend_from_slice(&digits[point..]);
            }
            _ if (-5..=0).contains(&self.point) => {
                out.extend_from_slice(b"0.");
                for _ in self.point..0 {
                    out.push(b'0');
                }
                out.extend_from_slice(digits);
            }
            _ => {
                out.push(digits[0]);
                if digits.len() > 1 {
                    out.push(b'.');
                    out.extend_from_slice(&digits[1..]);
                }
                let exponent = self.point - 1;
                out.extend_from_slice(if exponent < 0 { b"e-" } else { b"e+" });
                // A double's exponent has at most three digits.
                let exponent = exponent.unsigned_abs();
                for unit in [100, 10, 1] {
                    if exponent >= unit {
                        out.push(b'0' + (exponent / unit % 10) as u8);
                    }
                }
            }
        }
    }
}

fn without_zeros(digits: &[u8]) -> &[u8] {
    let last = digits.iter().rposition(|digit| *digit != b'0');
    &digits[..last.map_or(0, |last| last + 1)]
}

fn digits_end(input: &[u8], from: usize) -> usize {
    let run = input[from.min(input.len())..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit());
    from + run.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(text: &str) -> Option<(String, bool)> {
        let mut out = Vec::new();
        let scanned = canonicalise(text.as_bytes(), &mut out)?;
        assert_eq!(scanned.length, text.len(), "{text}");
        Some((
            String::from_utf8(out).expect("numbers are ASCII"),
            scanned.exact,
        ))
    }

    #[test]
    fn exact_numbers() {
        for (text, expected) in [
            ("0", "0"),
            ("-0", "0"),
            ("-0.0e5", "0"),
            ("0e99999999999999999999999", "0"),
            ("1000", "1000"),
            ("1000.0", "1000"),
            ("1e3", "1000"),
            ("-1E+3", "-1000"),
            ("10.50", "10.5"),
            ("0.000001", "0.000001"),
            ("0.0000001", "1e-7"),
            ("123e18", "123000000000000000000"),
            ("1e21", "1e+21"),
            ("12.5e21", "1.25e+22"),
            ("999999999999999", "999999999999999"),
            ("9007199254740992", "9007199254740992"),
            ("9007199254740991.0e-1", "900719925474099.1"),
            ("0.1", "0.1"),
            ("1000000000000000.2", "1000000000000000.2"),
            ("5e-324", "5e-324"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
            ("2.2250738585072014e-308", "2.2250738585072014e-308"),
            ("100000000000000000000000", "1e+23"),
        ] {
            assert_eq!(printed(text), Some((expected.to_owned(), true)), "{text}");
        }
    }

    #[test]
    fn inexact_numbers() {
        for (text, expected) in [
            ("9007199254740993", "9007199254740992"),
            ("333333333.33333329", "333333333.3333333"),
            ("1e-400", "0"),
            ("-1e-400", "0"),
            ("1000000000000000.3", "1000000000000000.2"),
            ("1000000000000000.25", "1000000000000000.2"),
            ("4e-324", "5e-324"),
            ("0.1000000000000000055511151231257827", "0.1"),
            ("10000000000000000000000000000001", "1e+31"),
        ] {
            assert_eq!(printed(text), Some((expected.to_owned(), false)), "{text}");
        }
        assert_eq!(printed("1e400"), None);
        assert_eq!(printed("1e99999999999999999999999"), None);
    }

    #[test]
    fn not_numbers() {
        for text in [
            "", "-", "+1", ".5", "1.", "1.e3", "1e", "1e+", "NaN", "Infinity", "-.1",
        ] {
            assert!(
                canonicalise(text.as_bytes(), &mut Vec::new()).is_none(),
                "{text}"
            );
        }
    }
}
