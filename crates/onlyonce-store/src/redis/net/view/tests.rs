//! Whose word is enough, and whose is not.

use super::*;

fn host(port: u16) -> Host {
    let name = "127.0.0.1".to_owned();
    Host { name, port }
}

fn text(word: impl ToString) -> Value {
    Value::BulkString(word.to_string().into_bytes())
}

/// A Sentinel's answer: its id, the master it tells, the master its flags are of, and those.
fn sentinel(id: &str, (told, epoch): (u16, u64), (of, flags): (u16, &str)) -> SentinelAnswer {
    let fields = [
        ("ip", "127.0.0.1".to_owned()),
        ("port", of.to_string()),
        ("flags", flags.to_owned()),
        ("config-epoch", epoch.to_string()),
        ("num-slaves", "1".to_owned()),
        ("num-other-sentinels", "2".to_owned()),
    ];
    let fields = fields
        .into_iter()
        .flat_map(|(name, value)| [text(name), text(value)]);
    let answers = vec![
        Value::Array(vec![text("127.0.0.1"), text(told)]),
        Value::Array(fields.collect()),
        Value::Array(Vec::new()),
        text(id),
    ];
    SentinelAnswer::read(answers, &host(1)).unwrap()
}

/// Who is master by these answers, and whether that is vouched for.
fn seen(answers: &[SentinelAnswer]) -> (u16, bool) {
    let view = sentinel_view(answers, Instant::now()).unwrap();
    let host = view.map.owner(7).unwrap();
    assert_eq!(view.masters[host].replicas, 1);
    (host.port, view.vouches_for(host, Some(7)))
}

#[test]
fn a_majority_of_sentinels_vouches() {
    let well = |id| sentinel(id, (6, 1), (6, "master"));
    let down = |id| sentinel(id, (6, 1), (6, "s_down,master"));
    assert_eq!(seen(&[well("a"), well("b"), well("c")]), (6, true));
    assert_eq!(seen(&[well("a"), well("b"), down("c")]), (6, true));
    assert_eq!(seen(&[well("a"), well("b")]), (6, true));
    assert_eq!(seen(&[well("a")]), (6, false), "one of three");
    assert_eq!(seen(&[well("a"), down("b")]), (6, false));
    for flags in ["s_down,o_down,master", "master,failover_in_progress"] {
        let going = sentinel("c", (6, 1), (6, flags));
        assert_eq!(seen(&[well("a"), well("b"), going]), (6, false), "{flags}");
    }
}

#[test]
fn the_latest_configuration_wins() {
    let old = |id| sentinel(id, (6, 1), (6, "master"));
    let switched = |id| sentinel(id, (7, 2), (7, "master"));
    // The one that leads the switch tells the new master while its flags are still of the old one.
    let leads = sentinel(
        "a",
        (7, 2),
        (6, "s_down,o_down,master,failover_in_progress"),
    );
    assert_eq!(seen(&[leads.clone(), old("b"), old("c")]), (7, false));
    assert_eq!(seen(&[leads, switched("b"), old("c")]), (7, true));
    assert_eq!(seen(&[old("a"), old("b"), switched("c")]), (7, false));
    assert!(sentinel_view(&[], Instant::now()).is_none());
}

/// Id, port, flags, whom it follows, epoch, and slots of a node.
type Line<'a> = (&'a str, u16, &'a str, &'a str, u64, Option<(u16, u16)>);

/// What the node of this id says of all.
fn node(id: &str, nodes: &[Line<'_>]) -> ClusterAnswer {
    let mut lines = String::new();
    let mut ranges = Vec::new();
    for (name, port, flags, follows, epoch, slots) in nodes {
        let myself = if name == &id { "myself," } else { "" };
        lines +=
            &format!("{name} 127.0.0.1:{port}@1 {myself}{flags} {follows} 0 0 {epoch} connected\n");
        if let Some((first, last)) = slots {
            let owner = vec![text("127.0.0.1"), Value::Int((*port).into()), text(name)];
            ranges.push(Value::Array(vec![
                Value::Int((*first).into()),
                Value::Int((*last).into()),
                Value::Array(owner),
            ]));
        }
    }
    ClusterAnswer::read(vec![Value::Array(ranges), text(lines)], &host(1)).unwrap()
}

const LAST: u16 = 16_383;

/// A cluster of three masters, the first with a replica, as `id` sees it with these flags of the first.
fn before(id: &str, flags: &str) -> ClusterAnswer {
    node(
        id,
        &[
            ("m1", 1, flags, "-", 1, Some((0, 99))),
            ("m2", 2, "master", "-", 2, Some((100, 199))),
            ("m3", 3, "master", "-", 3, Some((200, LAST))),
            ("r1", 4, "slave", "m1", 1, None),
        ],
    )
}

/// The same after the replica took over.
fn after(id: &str) -> ClusterAnswer {
    node(
        id,
        &[
            ("m1", 1, "master,fail", "-", 1, None),
            ("m2", 2, "master", "-", 2, Some((100, 199))),
            ("m3", 3, "master", "-", 3, Some((200, LAST))),
            ("r1", 4, "master", "-", 4, Some((0, 99))),
        ],
    )
}

#[test]
fn a_majority_of_masters_vouches() {
    let vouches = |answers: &[ClusterAnswer]| {
        let view = cluster_view(answers, Instant::now());
        assert_eq!(view.map.owner(7), Some(&host(1)));
        assert_eq!(view.masters[&host(1)].replicas, 1);
        assert_eq!(view.masters[&host(2)].replicas, 0);
        view.vouches_for(&host(1), Some(7))
    };
    let well = |id| before(id, "master");
    assert!(vouches(&[well("m1"), well("m2"), well("m3"), well("r1")]));
    assert!(vouches(&[well("m2")]), "with itself it is two of three");
    assert!(!vouches(&[well("m1")]), "its own word is not enough");
    assert!(!vouches(&[well("m1"), well("r1")]), "replicas have no vote");
    for flags in ["master,fail?", "master,fail"] {
        assert!(!vouches(&[well("m1"), before("m2", flags)]), "{flags}");
    }
    assert!(!View::default().vouches_for(&host(1), Some(7)));
}

#[test]
fn the_highest_epoch_has_the_slots() {
    let answers = [
        before("m1", "master"),
        after("m2"),
        before("m3", "master,fail"),
    ];
    let view = cluster_view(&answers, Instant::now());
    assert_eq!(view.map.owner(0), Some(&host(4)));
    assert_eq!(view.map.owner(99), Some(&host(4)));
    assert_eq!(view.map.owner(100), Some(&host(2)));
    assert_eq!(view.map.owner(LAST), Some(&host(3)));
    assert_eq!(view.map.0.len(), 3);
    assert!(!view.masters.contains_key(&host(1)), "it was deposed");
    assert!(view.vouches_for(&host(4), Some(7)));
    assert!(!view.vouches_for(&host(4), Some(100)), "that is another's");
}
