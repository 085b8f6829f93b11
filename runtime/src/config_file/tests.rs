use std::collections::BTreeMap;

use serde::Deserialize;

use super::*;

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Settings {
    node: String,
    data: PathBuf,
    #[serde(default)]
    advertise: Option<String>,
    #[serde(default = "listen")]
    grpc_listen: String,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    broker: Broker,
    #[serde(default)]
    format: crate::telemetry::LogFormat,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
struct Limits {
    poll_ms_max: u64,
    names: Vec<String>,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
struct Broker {
    group: Vec<Group>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
}

fn listen() -> String {
    "0.0.0.0:8081".to_owned()
}

const FILE: &str = "\
node = \"b1\"
data = \"/var/lib/mq\"

[limits]
poll_ms_max = 5

[[broker.group]]
name = \"broker-a\"
";

struct Case {
    sources: Sources,
    folder: tempfile::TempDir,
}

fn case(file: &str, environment: &[(&str, &str)], set: &[&str]) -> Case {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mq.toml");
    let mut out = std::fs::OpenOptions::new().create_new(true).write(true).open(&path).expect("a new file");
    std::io::Write::write_all(&mut out, file.as_bytes()).expect("a few bytes");
    let environment = environment.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    let set = set.iter().map(|given| (*given).to_owned()).collect();
    Case { sources: Sources { file: Some(path), environment, set }, folder }
}

impl Case {
    fn load(&self) -> Loaded<Settings> {
        self.sources.load().unwrap_or_else(|error| panic!("{error}"))
    }

    /// The error's text with the folder's name taken out.
    fn error(&self) -> String {
        let error = self.sources.load::<Settings>().expect_err("must be refused");
        self.text(&error)
    }

    fn text(&self, error: &ConfigError) -> String {
        error.to_string().replace(&format!("{}/", self.folder.path().display()), "")
    }
}

#[test]
fn later_sources_win() {
    let case = case(
        FILE,
        &[("MQ_NODE", "b2"), ("MQ_LIMITS_POLL_MS_MAX", "7"), ("MQ_ADVERTISE", "env.example.net")],
        &[
            "limits.poll_ms_max=9",
            "limits.names=[\"a\", \"b\"]",
            "broker.group=[{name = \"broker-b\"}]",
            "format=json",
        ],
    );
    let loaded = case.load();
    let settings = Settings {
        node: "b2".to_owned(),
        data: PathBuf::from("/var/lib/mq"),
        advertise: Some("env.example.net".to_owned()),
        grpc_listen: listen(),
        limits: Limits { poll_ms_max: 9, names: vec!["a".to_owned(), "b".to_owned()] },
        broker: Broker { group: vec![Group { name: "broker-b".to_owned() }] },
        format: crate::telemetry::LogFormat::Json,
        labels: BTreeMap::new(),
    };
    assert_eq!(loaded.settings, settings);
    assert!(loaded.unknown_environment.is_empty());
}

#[test]
fn text_settings_need_no_quotes_and_may_have_them() {
    let loaded =
        case(FILE, &[("MQ_NODE", "17")], &["grpc_listen=\"a = b\"", "data=/x y=z", "advertise=true"]).load();
    assert_eq!(loaded.settings.node, "17");
    assert_eq!(loaded.settings.grpc_listen, "a = b");
    assert_eq!(loaded.settings.data, PathBuf::from("/x y=z"));
    assert_eq!(loaded.settings.advertise.as_deref(), Some("true"));
}

#[test]
fn file_is_not_needed() {
    let set = vec!["node=b1".to_owned(), "data=/d".to_owned()];
    let loaded = Sources { set, ..Sources::default() }.load::<Settings>().expect("both are set");
    assert_eq!(loaded.settings.node, "b1");
}

#[test]
fn misspelt_key_shows_line_carets_and_the_nearest_key() {
    let file =
        format!("{FILE}\n\n\ngrpc_lisen = \"0.0.0.0:8081\"\n").replace("[limits]\npoll_ms_max = 5\n", "");
    let file = file.replace("[[broker.group]]\nname = \"broker-a\"\n", "");
    assert_eq!(
        case(&file, &[], &[]).error(),
        "\
unknown setting `grpc_lisen`
 --> mq.toml:8:1
  |
8 | grpc_lisen = \"0.0.0.0:8081\"
  | ^^^^^^^^^^ did you mean `grpc_listen`?"
    );
}

#[test]
fn misspelt_key_in_a_list_of_tables_is_found_there() {
    let file = FILE.replace("name =", "\tnmae =");
    assert_eq!(
        case(&file, &[], &[]).error(),
        "\
unknown setting `nmae`
 --> mq.toml:8:2
  |
8 | \tnmae = \"broker-a\"
  | \t^^^^ did you mean `name`?"
    );
}

#[test]
fn key_in_the_wrong_table_names_the_right_one() {
    let file = FILE.replace("[limits]\n", "");
    let error = case(&file, &[], &[]).error();
    assert!(error.ends_with("^^^^^^^^^^^ did you mean `limits.poll_ms_max`?"), "{error}");
    let error = case(&FILE.replace("node =", "zzzzzzzz ="), &[], &[]).error();
    assert!(
        error.starts_with("unknown setting `zzzzzzzz`") && error.ends_with("| ^^^^^^^^"),
        "no guess: {error}"
    );
}

#[test]
fn misspelt_flag_is_an_error_with_the_nearest_key() {
    assert_eq!(
        case(FILE, &[], &["limits.pol_ms_max=1"]).error(),
        "\
unknown setting `limits.pol_ms_max`
 --> --set:1:1
  |
1 | limits.pol_ms_max=1
  | ^^^^^^^^^^^^^^^^^ did you mean `limits.poll_ms_max`?"
    );
    assert_eq!(case(FILE, &[], &["node"]).error(), "`--set node`: must be key=value");
}

#[test]
fn wrong_type_names_its_source() {
    let error = case(&FILE.replace("= 5", "= \"x\""), &[], &[]).error();
    assert!(error.contains("--> mq.toml:5:15\n") && error.contains("5 | poll_ms_max = \"x\"\n"), "{error}");
    let error = case(FILE, &[("MQ_LIMITS_POLL_MS_MAX", "true")], &[]).error();
    assert!(error.contains("--> environment MQ_LIMITS_POLL_MS_MAX:1:1\n"), "{error}");
    let error = case(FILE, &[("MQ_NODE", "x")], &["advertise=y", "limits.names=[1]"]).error();
    assert!(error.contains("--> --set:1:15\n") && error.ends_with("|               ^"), "{error}");
    let error = case(FILE, &[], &["limits.names=[1"]).error();
    assert!(error.contains("--> --set:1:"), "no TOML: {error}");
    let error = case(FILE, &[], &["broker.group=[{nam = \"x\"}]"]).error();
    assert!(error.ends_with("|                ^^^ did you mean `name`?"), "{error}");
}

#[test]
fn missing_key_and_broken_file_are_named() {
    let error = case(&FILE.replace("node = \"b1\"\n", ""), &[], &[]).error();
    assert!(error.starts_with("missing field `node`"), "{error}");
    let error = case(&FILE.replace("[limits]", "[limits"), &[], &[]).error();
    assert!(error.contains("--> mq.toml:4:"), "{error}");
    let missing = Sources { file: Some(PathBuf::from("/nowhere/mq.toml")), ..Sources::default() };
    let error = missing.load::<Settings>().expect_err("no such file").to_string();
    assert!(error.starts_with("cannot read settings from /nowhere/mq.toml: "), "{error}");
}

#[test]
fn rejected_value_shows_where_it_comes_from() {
    let from_file = case(FILE, &[("MQ_NODE", "!")], &[]);
    let problem = in_range(5, 100, 60_000).expect_err("too small");
    assert_eq!(problem, "5 is out of range; allowed are 100 to 60000");
    let error = from_file.load().reject("limits.poll_ms_max", problem);
    assert_eq!(
        from_file.text(&error),
        "\
setting `limits.poll_ms_max`: 5 is out of range; allowed are 100 to 60000
 --> mq.toml:5:15
  |
5 | poll_ms_max = 5
  |               ^"
    );
    let error = from_file.text(&from_file.load().reject("broker.group[0].name", "no"));
    assert!(error.contains("mq.toml:8:8"), "{error}");
    let error = from_file.text(&from_file.load().reject("node", "no"));
    assert!(error.contains("environment MQ_NODE:1:1"), "{error}");
    let error = from_file.text(&from_file.load().reject("grpc_listen", "no default either"));
    assert_eq!(error, "setting `grpc_listen`: no default either");
    let flag = case(FILE, &[], &["broker.group=[{name = \"x\"}]"]);
    let error = flag.text(&flag.load().reject("broker.group[0].name", "no"));
    assert!(error.contains("--set:1:14"), "{error}");
}

#[test]
fn foreign_variables_are_reported_and_not_refused() {
    let loaded = case(FILE, &[("MQ_BROKER_PORT", "tcp://10.0.0.1:80"), ("MQ_LOG", "debug")], &[]).load();
    assert_eq!(loaded.unknown_environment, ["MQ_BROKER_PORT"]);
}

#[test]
fn every_key_of_the_type_is_known() {
    let keys: Vec<_> =
        schema::keys::<Settings>().iter().map(|key| (key.dotted(), key.variable(), key.text)).collect();
    let expected = [
        ("node", "MQ_NODE", true),
        ("data", "MQ_DATA", true),
        ("advertise", "MQ_ADVERTISE", true),
        ("grpc_listen", "MQ_GRPC_LISTEN", true),
        ("limits.poll_ms_max", "MQ_LIMITS_POLL_MS_MAX", false),
        ("limits.names", "MQ_LIMITS_NAMES", false),
        ("broker.group", "MQ_BROKER_GROUP", false),
        ("format", "MQ_FORMAT", true),
        ("labels", "MQ_LABELS", false),
    ];
    let expected = expected.map(|(key, variable, text)| (key.to_owned(), variable.to_owned(), text));
    assert_eq!(keys, expected);
}
