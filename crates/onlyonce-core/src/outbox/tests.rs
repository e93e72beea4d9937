use super::*;

const NOW: Timestamp = Timestamp(1_000_000_000);

fn rules() -> TargetRules {
    TargetRules {
        max_attempts: 3,
        ..TargetRules::default()
    }
}

fn tried(attempts: u32, unclear_since: Option<Timestamp>) -> Tried {
    Tried {
        attempts,
        unclear_since,
    }
}

fn unclear() -> Sent {
    Sent::Unclear("cut off".to_owned())
}

fn after(tried: Tried, sent: Sent, rules: &TargetRules) -> Next {
    after_sending(tried, NOW, sent, NOW, rules, 7)
}

#[test]
fn words_lead_back_to_states() {
    for state in MessageState::ALL {
        assert_eq!(MessageState::from_word(state.as_str()), Some(state));
    }
    assert_eq!(MessageState::from_word("sent"), None);
}

#[test]
fn names_are_read_with_and_without_dashes() {
    let id = MessageId([0xab; 16]);
    assert_eq!(id.to_string().parse(), Ok(id));
    assert_eq!("abababab-abab-abab-abab-abababababab".parse(), Ok(id));
    assert!("abab".parse::<MessageId>().is_err());
}

#[test]
fn attempts_are_bounded() {
    let rules = rules();
    let failed = || Sent::NotSent("refused".to_owned());
    for attempts in 1..rules.max_attempts {
        let next = after(tried(attempts, None), failed(), &rules);
        assert!(
            matches!(next, Next::Again { unclear: false, .. }),
            "{next:?}"
        );
        let next = after(tried(attempts, None), unclear(), &rules);
        assert!(
            matches!(next, Next::Again { unclear: true, .. }),
            "{next:?}"
        );
    }
    for sent in [failed(), unclear()] {
        let next = after(tried(rules.max_attempts, None), sent, &rules);
        assert_eq!(next.state(), MessageState::Dead);
    }
    // The senders of all attempts died.
    assert_eq!(
        before_sending(tried(rules.max_attempts, None), NOW, &rules),
        None
    );
    let next = before_sending(tried(rules.max_attempts + 1, None), NOW, &rules);
    assert_eq!(next.map(|next| next.state()), Some(MessageState::Dead));
}

#[test]
fn a_refusal_is_not_repeated() {
    let next = after(tried(1, None), Sent::Refused("no".to_owned()), &rules());
    assert_eq!(
        next,
        Next::Dead {
            unclear: false,
            reason: "no".to_owned()
        }
    );
}

#[test]
fn a_last_attempt_that_may_have_arrived_is_remembered_as_such() {
    let rules = rules();
    for (sent, expected) in [(unclear(), true), (Sent::NotSent("no".to_owned()), false)] {
        let next = after(tried(rules.max_attempts, None), sent, &rules);
        assert_eq!(next.state(), MessageState::Dead);
        assert_eq!(next.is_unclear(), expected);
    }
}

#[test]
fn a_retry_is_safe_while_the_receiver_knows_the_key_again() {
    let forgetful = TargetRules {
        dedups: false,
        ..rules()
    };
    for state in [MessageState::Dead, MessageState::Unknown] {
        assert_eq!(retry_is_safe_for(state, Some(&rules())), rules().key_ttl);
        assert_eq!(retry_is_safe_for(state, Some(&forgetful)), Duration::ZERO);
    }
    assert_eq!(
        retry_is_safe_for(MessageState::Unknown, None),
        Duration::ZERO
    );
    assert_eq!(retry_is_safe_for(MessageState::Dead, None), Duration::MAX);
}

#[test]
fn a_refusal_is_an_answer_for_a_key_that_waits_for_one() {
    let refused = || Sent::Refused("declined".to_owned());
    assert_eq!(refused().for_its_key(true, true), Sent::Delivered(None));
    for (settles, has_answer) in [(true, false), (false, true), (false, false)] {
        assert_eq!(refused().for_its_key(settles, has_answer), refused());
    }
    assert_eq!(unclear().for_its_key(true, true), unclear());
}

#[test]
fn what_a_receiver_does_not_know_again_is_not_sent_again() {
    let forgetful = TargetRules {
        dedups: false,
        ..rules()
    };
    let next = after(tried(1, None), unclear(), &forgetful);
    assert_eq!(next.state(), MessageState::Unknown);
    // A sender that died without a word.
    let next = before_sending(tried(2, Some(NOW)), NOW, &forgetful);
    assert_eq!(next.map(|next| next.state()), Some(MessageState::Unknown));
    // What never left may be sent.
    let next = after(
        tried(1, None),
        Sent::NotSent("refused".to_owned()),
        &forgetful,
    );
    assert_eq!(next.state(), MessageState::Pending);
    assert_eq!(before_sending(tried(2, None), NOW, &forgetful), None);
}

#[test]
fn a_key_is_relied_on_only_as_long_as_it_is_remembered() {
    let rules = rules();
    let long_ago = Timestamp(NOW.0 - 86_400_000);
    let just_within = Timestamp(long_ago.0 + 1);
    assert_eq!(
        before_sending(tried(2, Some(just_within)), NOW, &rules),
        None
    );
    let next = before_sending(tried(2, Some(long_ago)), NOW, &rules);
    assert_eq!(next.map(|next| next.state()), Some(MessageState::Unknown));
    let next = after(tried(2, Some(long_ago)), unclear(), &rules);
    assert_eq!(next.state(), MessageState::Unknown);
    let next = after(tried(2, Some(just_within)), unclear(), &rules);
    assert_eq!(next.state(), MessageState::Pending);
}

#[test]
fn pauses_grow_up_to_a_bound() {
    let rules = TargetRules {
        max_attempts: 1_000,
        ..rules()
    };
    let mut last = Duration::ZERO;
    for attempts in 1..100 {
        let shortest = pause(attempts, &rules, 0);
        let longest = pause(attempts, &rules, 1 << 40);
        assert!(shortest >= last / 2 && longest <= rules.longest_pause);
        assert!(shortest <= longest && longest <= shortest * 2);
        last = longest;
    }
    assert!(pause(100, &rules, 0) == rules.longest_pause / 2);
}
