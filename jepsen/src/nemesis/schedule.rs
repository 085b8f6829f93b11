//! Which fault next: rounds in which every enabled pair of class and target occurs once, in a seeded order.

use std::str::FromStr;

use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// SIGKILL, started again later.
    Kill,
    /// SIGSTOP, later SIGCONT.
    Pause,
    /// SIGKILL of all processes at once, started again later.
    KillAll,
}

impl Class {
    /// As on the command line and in the history.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::KillAll => "kill-all",
        }
    }
}

impl FromStr for Class {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "kill" => Ok(Self::Kill),
            "pause" => Ok(Self::Pause),
            "kill-all" => Ok(Self::KillAll),
            other => Err(format!("unknown fault `{other}`; there are: kill, pause, kill-all")),
        }
    }
}

/// What a fault aims at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Leader of the broker group.
    Leader,
    /// Any broker.
    Random,
    /// Leader of the name servers.
    NameLeader,
    /// Any name server.
    NameRandom,
    /// All nodes.
    All,
}

impl Target {
    /// As in the history.
    pub fn name(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Random => "random",
            Self::NameLeader => "ns-leader",
            Self::NameRandom => "ns-random",
            Self::All => "all",
        }
    }
}

/// One fault to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Planned {
    /// What.
    pub class: Class,
    /// At whom.
    pub target: Target,
}

/// One round. The leader of the brokers is hit by every class before anything else comes, so that a short run
/// has its leader changes; the order is otherwise the seed's.
pub fn round(classes: &[Class], random: &mut ChaCha8Rng) -> Vec<Planned> {
    let single = || classes.iter().filter(|class| **class != Class::KillAll);
    let pairs = |targets: &[Target]| -> Vec<Planned> {
        let all = targets.iter().flat_map(|target| single().map(move |class| (*class, *target)));
        all.map(|(class, target)| Planned { class, target }).collect()
    };
    let mut others = pairs(&[Target::Random, Target::NameLeader, Target::NameRandom]);
    if classes.contains(&Class::KillAll) {
        others.push(Planned { class: Class::KillAll, target: Target::All });
    }
    let mut leaders = pairs(&[Target::Leader]);
    others.shuffle(random);
    leaders.shuffle(random);
    // Taken from the end.
    others.extend(leaders);
    others
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::stream;

    #[test]
    fn a_round_has_every_pair_once_and_repeats_for_a_seed() {
        let classes = [Class::Kill, Class::Pause];
        let first = round(&classes, &mut stream(3, "nemesis"));
        assert_eq!(first, round(&classes, &mut stream(3, "nemesis")));
        let mut sorted = first.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), 8);
        assert!(first[6..].iter().all(|planned| planned.target == Target::Leader));
    }

    #[test]
    fn all_nodes_are_hit_by_kill_all_only() {
        let round = round(&[Class::Kill, Class::KillAll], &mut stream(3, "nemesis"));
        let all: Vec<_> = round.iter().filter(|planned| planned.target == Target::All).collect();
        assert_eq!(all, [&Planned { class: Class::KillAll, target: Target::All }]);
        assert_eq!(round.len(), 5);
    }

    #[test]
    fn unknown_classes_are_named() {
        assert_eq!("kill".parse(), Ok(Class::Kill));
        let error = "kil".parse::<Class>().expect_err("unknown");
        assert!(error.contains("`kil`") && error.contains("pause"));
    }
}
