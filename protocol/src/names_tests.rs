use proptest::prelude::*;

use super::*;

fn problem(result: Result<(), Invalid>) -> Problem {
    result.expect_err("must be refused").problem
}

#[test]
fn ordinary_names_are_accepted() {
    for name in ["a", "orders", "Order_items-2", "%a|b", "%RETRY%g", "%DLQ%g", &"t".repeat(127)] {
        topic(name).unwrap_or_else(|error| panic!("{error}"));
    }
    for name in ["g", "GID-orders_1", &"g".repeat(120)] {
        group(name).unwrap_or_else(|error| panic!("{error}"));
    }
    for name in ["", "tenant-1", &"n".repeat(127)] {
        namespace(name).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn forbidden_characters_are_named_with_their_place() {
    for (name, found, position) in
        [("a b", ' ', 1), ("orders!", '!', 6), ("größe", 'ö', 2), ("a/b", '/', 1), ("a\nb", '\n', 1)]
    {
        assert_eq!(problem(topic(name)), Problem::Character { found, position });
        assert_eq!(problem(group(name)), Problem::Character { found, position });
        assert_eq!(problem(namespace(name)), Problem::Character { found, position });
    }
    assert_eq!(problem(namespace("a%b")), Problem::Character { found: '%', position: 1 });
}

#[test]
fn empty_and_too_long_names_are_refused() {
    assert_eq!(problem(topic("")), Problem::Blank);
    assert_eq!(problem(group("")), Problem::Blank);
    assert_eq!(problem(topic(&"t".repeat(128))), Problem::TooLong { value: 128, limit: 127 });
    assert_eq!(problem(group(&"g".repeat(121))), Problem::TooLong { value: 121, limit: 120 });
    assert_eq!(problem(namespace(&"n".repeat(128))), Problem::TooLong { value: 128, limit: 127 });
}

#[test]
fn derived_topics_may_be_longer() {
    for prefix in [RETRY_PREFIX, DEAD_LETTER_PREFIX] {
        let longest = format!("{prefix}{}", "g".repeat(255 - prefix.len()));
        topic(&longest).expect("255 is allowed");
        assert_eq!(problem(topic(&format!("{longest}g"))), Problem::TooLong { value: 256, limit: 255 });
    }
}

#[test]
fn system_names_are_refused() {
    for name in SYSTEM_TOPICS.iter().chain(&["rmq_sys_wheel_timer", "rmq_sys_"]) {
        assert_eq!(problem(topic(name)), Problem::Reserved, "{name}");
    }
    for name in SYSTEM_GROUPS.iter().chain(&["CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_x"]) {
        assert_eq!(problem(group(name)), Problem::Reserved, "{name}");
    }
    topic("TBW102x").expect("only the exact name is the system's");
}

#[test]
fn client_and_message_ids_are_not_blank() {
    for blank in ["", " ", "\t"] {
        assert_eq!(problem(client_id(blank)), Problem::Blank);
        assert_eq!(problem(message_id(blank)), Problem::Blank);
    }
    client_id("host@1@0@abc").expect("an ordinary client id");
    message_id("01AABBCCDDEEFF00010000000200000003").expect("an ordinary message id");
    assert_eq!(problem(client_id("a\u{1}")), Problem::Character { found: '\u{1}', position: 1 });
    assert_eq!(problem(message_id(&"x".repeat(256))), Problem::TooLong { value: 256, limit: 255 });
}

#[test]
fn tags_hold_no_bar_and_are_not_blank() {
    tag("").expect("no tag");
    tag("TagA größe").expect("any text");
    assert_eq!(problem(tag("a|b")), Problem::Character { found: '|', position: 1 });
    assert_eq!(problem(tag("  ")), Problem::Blank);
    assert_eq!(problem(tag("a\u{7f}")), Problem::Character { found: '\u{7f}', position: 1 });
}

#[test]
fn keys_and_message_groups_hold_no_control_characters() {
    key("order 1").expect("a space is allowed");
    assert_eq!(problem(key("a\u{2}")), Problem::Character { found: '\u{2}', position: 1 });
    assert_eq!(problem(key(" ")), Problem::Blank);
    message_group("").expect("no message group");
    message_group(&"g".repeat(64)).expect("64 is allowed");
    assert_eq!(problem(message_group(&"g".repeat(65))), Problem::TooLong { value: 65, limit: 64 });
    assert_eq!(problem(message_group(" ")), Problem::Blank);
    assert_eq!(problem(message_group("a\rb")), Problem::Character { found: '\r', position: 1 });
}

#[test]
fn user_properties_take_no_name_of_the_system() {
    property("region", "eu").expect("an ordinary property");
    property("region", "").expect("an empty value");
    for reserved in ["KEYS", "TAGS", "DELAY", "UNIQ_KEY", "MIN_OFFSET", "__SHARDINGKEY", "__RMQ.TRANSIENT.x"]
    {
        let error = property(reserved, "x").expect_err("must be refused");
        assert_eq!((error.field, error.problem), (Field::PropertyKey, Problem::Reserved), "{reserved}");
    }
    let error = property("note", "a\nb").expect_err("must be refused");
    assert_eq!(
        (error.field, error.problem),
        (Field::PropertyValue, Problem::Character { found: '\n', position: 1 })
    );
    assert_eq!(problem(property("", "x")), Problem::Blank);
    assert_eq!(problem(property("a\u{1}b", "x")), Problem::Character { found: '\u{1}', position: 1 });
}

#[test]
fn errors_name_field_value_and_limit_in_one_line() {
    let error = topic(&"t".repeat(128)).expect_err("must be refused").to_string();
    assert_eq!(error, format!("topic `{}…`: 128 bytes, at most 127 allowed", "t".repeat(64)));
    let error = topic("a\nb").expect_err("must be refused").to_string();
    assert_eq!(error, "topic `a\\nb`: character '\\n' at position 1 is not allowed");
}

#[test]
fn resource_key_puts_the_namespace_first() {
    assert_eq!(resource_key("", "orders"), "orders");
    assert_eq!(resource_key("tenant", "orders"), "tenant%orders");
}

proptest! {
    #[test]
    fn any_text_gets_an_answer(value in any::<String>()) {
        for check in [topic, group, namespace, client_id, message_id, tag, key, message_group] {
            let _ = check(&value);
        }
        let _ = property(&value, &value);
    }

    #[test]
    fn accepted_names_have_only_the_allowed_characters(name in "[ -~]{0,140}") {
        if topic(&name).is_ok() {
            prop_assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"%|_-".contains(&byte)));
            prop_assert!((1..=255).contains(&name.len()));
        }
    }
}
