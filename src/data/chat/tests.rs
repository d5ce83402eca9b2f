use std::time::{Duration, Instant};

use super::*;

fn chat(source: &str) -> Chat {
    Chat::new(source, Map::new()).unwrap()
}

fn user(text: &str) -> Vec<Message> {
    vec![Message::new("user", text)]
}

#[test]
fn a_template_without_a_system_role_gets_its_text_in_front_of_the_first_user_turn() {
    let put = [Message::new("system", "Be brief."), Message::new("user", "2 + 3?")];
    for source in [
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ messages[0].content }}",
        "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}",
    ] {
        let chat = chat(source);
        assert!(!chat.takes_system());
        assert_eq!(chat.render(&put, true).unwrap(), "Be brief.\n\n2 + 3?");
        assert_eq!(chat.render(&put[..1], true).unwrap(), "Be brief.");
        assert_eq!(chat.render(&put[1..], true).unwrap(), "2 + 3?");
    }
    let chat = chat("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}");
    assert_eq!(chat.render(&put, true).unwrap(), "[system]Be brief.[user]2 + 3?");
}

#[test]
fn hostile_templates_end_soon_with_an_error() {
    let start = Instant::now();
    for source in [
        "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
        "{% set ns = namespace(t='xxxxxxxx') %}{% for i in range(99) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{{ ('x' * 1000000) | replace('x', 'y' * 1000000) }}",
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{% include 'chat' %}",
        "{% include '/etc/passwd' %}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[0] }}",
    ] {
        assert!(chat(source).render(&user("x"), true).is_err(), "{source}");
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000));
    assert!(Chat::new(&deep, Map::new()).is_err());
    assert!(Chat::new(&"x".repeat(MAX_SOURCE + 1), Map::new()).is_err());
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let error = chat("\n\n{{ raise_exception('turns must alternate') }}").render(&user("x"), true).unwrap_err();
    assert_eq!(error.message(), "the model's chat template: line 3: turns must alternate");
    let error = Chat::new("a\n{% unknown %}", Map::new()).unwrap_err();
    assert!(error.message().contains("line 2"), "{error}");
}

#[test]
fn problems_are_never_read_as_templates() {
    let text = "{{ messages }} {% raw %} {# x #}";
    assert_eq!(chat("{{ messages[0].content }}").render(&user(text), true).unwrap(), text);
}
