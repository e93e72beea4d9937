//! Builds a policy in code, from the same options as a configuration file has. The setters are made from the
//! list of options, in `options.rs`.

use super::{Options, Policy};

/// Builds a [`Policy`]; see [`Policy::builder`].
///
/// An explicit option overrides the [profile](Self::profile), which overrides the [dialect](Self::dialect),
/// which overrides the defaults, in whatever order the setters are called. If both an explicit limit and a
/// profile's limit exist, the stricter one applies.
///
/// ```
/// use std::time::Duration;
/// use onlyonce_core::policy::{Enforce, On5xx, Policy, Profile};
///
/// let policy = Policy::builder()
///     .profile(Profile::Payments)
///     .ttl(Duration::from_secs(7 * 86_400))
///     .build();
/// assert_eq!((policy.enforce, policy.on_5xx), (Enforce::On, On5xx::Unknown));
/// assert_eq!(policy.ttl.as_secs(), 7 * 86_400);
/// ```
#[must_use = "a policy is made by `build`"]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyBuilder(pub(super) Options);

impl Policy {
    /// Starts from the defaults: keys are honoured, and none is required.
    pub fn builder() -> PolicyBuilder {
        PolicyBuilder::default()
    }
}

impl PolicyBuilder {
    /// Builds the policy.
    pub fn build(self) -> Policy {
        let options = Options {
            enabled: self.0.enabled.or(Some(true)),
            ..self.0
        };
        Policy::resolve(&options, &Options::default())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::policy::{Enforce, Profile};

    #[test]
    fn nothing_said_is_the_default() {
        assert_eq!(Policy::builder().build(), Policy::default());
        assert!(!Policy::builder().enabled(false).build().enabled);
    }

    #[test]
    fn what_is_said_overrules_the_profile_in_any_order() {
        let hour = Duration::from_secs(3_600);
        let before = Policy::builder().ttl(hour).profile(Profile::Payments);
        let after = Policy::builder().profile(Profile::Payments).ttl(hour);
        let (before, after) = (before.build(), after.build());
        assert_eq!(before, after);
        assert_eq!((before.ttl, before.enforce), (hour, Enforce::On));
        // The profile's limit is the stricter one.
        let loose = Policy::builder()
            .profile(Profile::Payments)
            .live_keys(1 << 40);
        assert_eq!(loose.build().live_keys, Some(10_000));
    }
}
