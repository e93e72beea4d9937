//! JSON numbers in the form that ECMAScript prints, and whether that form has the same value.
//!
//! RFC 8785 prints the double nearest to a number. That makes two different amounts one whenever
//! doubles are too coarse, so each number also reports whether its decimal value survived exactly.

use std::io::Write;

/// No double needs more significant digits than this to be told from its neighbours.
const MAX_SHORTEST_DIGITS: usize = 17;
/// Any decimal with at most this many significant digits is the shortest decimal of its double,
/// because no two such decimals share one.
const ALWAYS_EXACT_DIGITS: usize = 15;
/// Decimal exponents (of the first digit) at which doubles have their full precision.
const FULL_PRECISION: std::ops::RangeInclusive<i64> = -307..=307;
/// Exponents are held below this, far beyond any double and far from overflow.
const MAX_EXPONENT: i64 = 1 << 40;
/// Room for the scientific form of any double.
const SCIENTIFIC_BYTES: usize = 32;
/// A double halfway between two decimals of seventeen digits has fewer digits than this.
const EXACT_DIGITS: usize = 32;

/// A number at the start of an input.
pub(super) struct Scanned {
    /// How many bytes of the input it takes.
    pub(super) length: usize,
    /// Whether what was printed has exactly the decimal value that was read.
    pub(super) exact: bool,
}

/// Reads the number that `input` starts with and appends its ECMAScript form to `out`.
///
/// `None` if there is no number, or none that a double can hold at all.
pub(super) fn canonicalise(input: &[u8], out: &mut Vec<u8>) -> Option<Scanned> {
    let token = Token::scan(input)?;
    let length = token.length;
    if token.is_integer && token.integer.len() <= ALWAYS_EXACT_DIGITS {
        // By far the commonest number is its own canonical form; only the sign of zero is lost.
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
    shortest.print(token.negative, out);
    Some(Scanned {
        length,
        exact: decimal.is_some_and(|decimal| decimal == shortest),
    })
}

/// The pieces of a number that follows the JSON grammar.
struct Token<'a> {
    negative: bool,
    integer: &'a [u8],
    fraction: &'a [u8],
    exponent: i64,
    is_integer: bool,
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
            length: end,
        })
    }

    /// The value without leading and trailing zeros; `None` if no double has so many digits.
    fn decimal(&self) -> Option<Decimal> {
        let mut decimal = Decimal::default();
        let mut last = 0;
        for (at, digit) in self.integer.iter().chain(self.fraction).enumerate() {
            if *digit == b'0' {
                continue;
            }
            if decimal.count == 0 {
                let integer_digits = i64::try_from(self.integer.len()).ok()?;
                decimal.point = integer_digits - i64::try_from(at).ok()? + self.exponent;
                last = at;
            }
            // Zeros become significant only once another digit follows them.
            let zeros = (at - last).saturating_sub(1);
            decimal.count = decimal.count.checked_add(zeros)?;
            *decimal.digits.get_mut(decimal.count)? = *digit;
            decimal.count += 1;
            last = at;
        }
        Some(decimal)
    }
}

/// `0.DIGITS` times ten to the `point`, with neither leading nor trailing zeros.
#[derive(Clone, PartialEq)]
struct Decimal {
    digits: [u8; MAX_SHORTEST_DIGITS],
    count: usize,
    point: i64,
}

impl Default for Decimal {
    fn default() -> Self {
        Decimal {
            digits: [b'0'; MAX_SHORTEST_DIGITS],
            count: 0,
            point: 0,
        }
    }
}

impl Decimal {
    /// The shortest decimal that rounds to `value`, which is neither zero nor infinite; of two
    /// equally near ones the even one, as ECMAScript has it.
    fn shortest(value: f64) -> Option<Decimal> {
        let value = value.abs();
        let shortest = Decimal::scientific(format_args!("{value:e}"))?;
        let last = shortest.digits[shortest.count - 1];
        if last % 2 == 0 {
            return Some(shortest);
        }
        // The standard library breaks ties upwards. A tie is a value that ends right there, halfway
        // between two decimals that both round to it.
        let mut even = shortest.clone();
        even.digits[shortest.count - 1] = last - 1;
        let mut exact = [0; EXACT_DIGITS + SCIENTIFIC_BYTES];
        let exact = print_into(&mut exact, format_args!("{value:.EXACT_DIGITS$e}"))?;
        let mut digits = exact
            .bytes()
            .take_while(|b| *b != b'e')
            .filter(u8::is_ascii_digit);
        let is_tie = digits
            .by_ref()
            .take(even.count)
            .eq(even.digits[..even.count].iter().copied())
            && digits.next() == Some(b'5')
            && digits.all(|digit| digit == b'0');
        let mut text = Vec::with_capacity(SCIENTIFIC_BYTES);
        even.print(false, &mut text);
        let rounds_alike = str::from_utf8(&text).ok()?.parse() == Ok(value);
        Some(if is_tie && rounds_alike {
            even
        } else {
            shortest
        })
    }

    fn scientific(text: std::fmt::Arguments<'_>) -> Option<Decimal> {
        let mut buffer = [0; SCIENTIFIC_BYTES];
        let (mantissa, exponent) = print_into(&mut buffer, text)?.split_once('e')?;
        let mut decimal = Decimal {
            point: exponent.parse::<i64>().ok()? + 1,
            ..Decimal::default()
        };
        for digit in mantissa.bytes().filter(u8::is_ascii_digit) {
            *decimal.digits.get_mut(decimal.count)? = digit;
            decimal.count += 1;
        }
        Some(decimal)
    }

    /// `Number::toString` of ECMAScript, whose `n` is our `point`.
    fn print(&self, negative: bool, out: &mut Vec<u8>) {
        let digits = &self.digits[..self.count];
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
                out.extend_from_slice(format!("e{:+}", self.point - 1).as_bytes());
            }
        }
    }
}

fn print_into<'a>(buffer: &'a mut [u8], text: std::fmt::Arguments<'_>) -> Option<&'a str> {
    let size = buffer.len();
    let mut rest = &mut *buffer;
    rest.write_fmt(text).ok()?;
    let used = size - rest.len();
    str::from_utf8(&buffer[..used]).ok()
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
