//! What is said about wrong files, word for word: the places, what was expected, and what to do. Long, as every text
//! stands here whole.

use qerl::pipeline::Options;

use super::{bad, sets};

#[test]
fn unknown_keys_name_the_nearest() {
    let said = bad(
        r#"name: x
stages:
  - {id: model, run: {download: {repo: bundled}}}
  - {id: base, run: {quantize: {modle: model, format: nf4}}}
varz: {a: 1}
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: `base` has no key `modle`
     --> p.yaml:4:33
      |
    4 |   - {id: base, run: {quantize: {modle: model, format: nf4}}}
      |                                 ^^^^^ unknown key
      |
      = help: did you mean `model`?

    error: unknown key `varz`
     --> p.yaml:5:1
      |
    5 | varz: {a: 1}
      | ^^^^ not a key of a pipeline file
      |
      = help: did you mean `vars`?
    "##);
}

#[test]
fn wrong_types_say_what_was_expected() {
    let said = bad(
        r#"name: x
stages:
  - {id: model, run: {download: {repo: bundled}}}
  - {id: l, run: {lora: {model: model, rank: 1_000, alpha: "1e-5", train_norms: yes, targets: q_proj}}}
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: `l.rank` cannot be the string `1_000`
     --> p.yaml:4:46
      |
    4 |   - {id: l, run: {lora: {model: model, rank: 1_000, alpha: "1e-5", train_norms: yes, targets: q_proj}}}
      |                                              ^^^^^ expected an integer within 1..1024
      |
      = help: write 1000 (no quotes, no `_`)

    error: `l.alpha` cannot be the string `1e-5`
     --> p.yaml:4:60
      |
    4 |   - {id: l, run: {lora: {model: model, rank: 1_000, alpha: "1e-5", train_norms: yes, targets: q_proj}}}
      |                                                            ^^^^^^ expected a number
      |
      = help: write 1e-5 (no quotes, no `_`)

    error: `l.train_norms` cannot be the string `yes`
     --> p.yaml:4:81
      |
    4 |   - {id: l, run: {lora: {model: model, rank: 1_000, alpha: "1e-5", train_norms: yes, targets: q_proj}}}
      |                                                                                 ^^^ expected true or false
      |
      = help: write true

    error: `l.targets` cannot be the string `q_proj`
     --> p.yaml:4:95
      |
    4 |   - {id: l, run: {lora: {model: model, rank: 1_000, alpha: "1e-5", train_norms: yes, targets: q_proj}}}
      |                                                                                               ^^^^^^ expected a list, each one of: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj
      |
      = help: write [q_proj]
    "##);
}

#[test]
fn ranges_and_choices_come_from_the_schema() {
    let said = bad(
        r#"name: x
stages:
  - {id: model, run: {download: {repo: bundled}}}
  - {id: base, run: {quantize: {model: model, format: nvfp}}}
  - {id: t, run: {train: {policy: base, data: arith, steps: 0, group_size: 1, warmup: 1.5, seed: -1, lr_schedule: cosin}}}
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: `base.format` cannot be `nvfp`
     --> p.yaml:4:55
      |
    4 |   - {id: base, run: {quantize: {model: model, format: nvfp}}}
      |                                                       ^^^^ expected one of: bf16, nvfp4, mxfp4, nf4
      |
      = help: did you mean `nvfp4`?

    error: `t.steps` cannot be the number `0`
     --> p.yaml:5:61
      |
    5 |   - {id: t, run: {train: {policy: base, data: arith, steps: 0, group_size: 1, warmup: 1.5, seed: -1, lr_schedule: cosin}}}
      |                                                             ^ expected an integer of at least 1

    error: `t.group_size` cannot be the number `1`
     --> p.yaml:5:76
      |
    5 |   - {id: t, run: {train: {policy: base, data: arith, steps: 0, group_size: 1, warmup: 1.5, seed: -1, lr_schedule: cosin}}}
      |                                                                            ^ expected an integer within 2..4096

    error: `t.warmup` cannot be the number `1.5`
     --> p.yaml:5:87
      |
    5 |   - {id: t, run: {train: {policy: base, data: arith, steps: 0, group_size: 1, warmup: 1.5, seed: -1, lr_schedule: cosin}}}
      |                                                                                       ^^^ expected a number within 0..1

    error: `t.seed` cannot be the number `-1`
     --> p.yaml:5:98
      |
    5 |   - {id: t, run: {train: {policy: base, data: arith, steps: 0, group_size: 1, warmup: 1.5, seed: -1, lr_schedule: cosin}}}
      |                                                                                                  ^^ expected an integer of at least 0

    error: `t.lr_schedule` cannot be `cosin`
     --> p.yaml:5:115
      |
    5 |   - {id: t, run: {train: {policy: base, data: arith, steps: 0, group_size: 1, warmup: 1.5, seed: -1, lr_schedule: cosin}}}
      |                                                                                                                   ^^^^^ expected one of: cosine, linear, constant
      |
      = help: did you mean `cosine`?
    "##);
}

#[test]
fn missing_keys_are_explained() {
    let said = bad(
        r#"name: x
stages:
  - {id: model, run: {download: {repo: bundled}}}
  - id: t
    run: {train: {policy: model, data: sums}}
  - id: q
    run: {quantize: }
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: `t` needs `steps`
     --> p.yaml:5:11
      |
    5 |     run: {train: {policy: model, data: sums}}
      |           ^^^^^ expected `steps`: an integer of at least 1
      |
      = help: steps: The schedules' horizon in optimizer steps.

    error: `q` needs `model`
     --> p.yaml:7:11
      |
    7 |     run: {quantize: }
      |           ^^^^^^^^ expected `model`: a stage's id

    error: `q` needs `format`
     --> p.yaml:7:11
      |
    7 |     run: {quantize: }
      |           ^^^^^^^^ expected `format`: one of: bf16, nvfp4, mxfp4, nf4
    "##);
}

#[test]
fn missing_stages_and_data() {
    let said = bad(
        r#"name: x
stages:
  - {id: model, run: {download: {repo: bundled}}}
  - {id: base, run: {quantize: {model: modle, format: nf4}}}
  - {id: e, run: {eval: {policy: base, data: [gsm8, math500.holdout, model]}}}
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: there is no stage `modle`
     --> p.yaml:4:40
      |
    4 |   - {id: base, run: {quantize: {model: modle, format: nf4}}}
      |                                        ^^^^^
      |
      = help: did you mean `model`?

    error: there is no data set `gsm8`
     --> p.yaml:5:47
      |
    5 |   - {id: e, run: {eval: {policy: base, data: [gsm8, math500.holdout, model]}}}
      |                                               ^^^^
      |
      = help: did you mean `gsm8k`?

    error: `model` is a `download` stage
     --> p.yaml:5:70
      |
    5 |   - {id: e, run: {eval: {policy: base, data: [gsm8, math500.holdout, model]}}}
      |                                                                      ^^^^^ expected a data set or a `split` stage
    "##);
}

#[test]
fn wrong_kinds_of_stages() {
    let said = bad(
        r#"name: x
stages:
  - {id: model, run: {download: {repo: bundled}}}
  - {id: r, run: {report: {gather: [model]}}}
  - {id: e, run: {eval: {policy: r, data: [sums]}}}
  - {id: f, run: {eval: {policy: {stage: model, checkpoint: best}, data: [sums]}}}
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: `model` is a `download` stage
     --> p.yaml:4:37
      |
    4 |   - {id: r, run: {report: {gather: [model]}}}
      |                                     ^^^^^ expected a stage of kind eval, train, sft

    error: `r` is a `report` stage
     --> p.yaml:5:34
      |
    5 |   - {id: e, run: {eval: {policy: r, data: [sums]}}}
      |                                  ^ expected a stage of kind download, quantize, lora, sft, train

    error: `model` has no checkpoint `best`
     --> p.yaml:6:42
      |
    6 |   - {id: f, run: {eval: {policy: {stage: model, checkpoint: best}, data: [sums]}}}
      |                                          ^^^^^ a `download` stage has last
    "##);
}

#[test]
fn checkpoints_that_are_not_kept() {
    let said = bad(
        r#"name: x
stages:
  - {id: model, run: {download: {repo: bundled}}}
  - {id: t, run: {train: {policy: model, data: sums, steps: 10}}}
  - {id: e, run: {eval: {policy: {stage: t, checkpoint: 5}, data: [sums]}}}
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: `t` keeps no checkpoint of step 5
     --> p.yaml:5:42
      |
    5 |   - {id: e, run: {eval: {policy: {stage: t, checkpoint: 5}, data: [sums]}}}
      |                                          ^
      |
      = help: set `t.keep_every`, or choose last or best
    "##);
}

#[test]
fn checkpoints_that_there_never_are() {
    let said = bad(
        r#"name: x
stages:
  - {id: model, run: {download: {repo: bundled}}}
  - {id: t, run: {train: {policy: model, data: sums, steps: 10}}}
  - {id: e, run: {eval: {policy: {stage: t, checkpoint: init}, data: [sums]}}}
  - {id: f, run: {eval: {policy: {stage: t, checkpoint: [1]}, data: [sums]}}}
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: `t` has no checkpoint `init`
     --> p.yaml:5:42
      |
    5 |   - {id: e, run: {eval: {policy: {stage: t, checkpoint: init}, data: [sums]}}}
      |                                          ^ a `train` stage has last, best or a kept step

    error: this is no checkpoint
     --> p.yaml:6:57
      |
    6 |   - {id: f, run: {eval: {policy: {stage: t, checkpoint: [1]}, data: [sums]}}}
      |                                                         ^^^ expected last, best, init or a step, got a list
    "##);
}

#[test]
fn equal_keys_and_ids() {
    let said = bad(
        r#"name: x
name: y
stages:
  - {id: a, run: {download: {repo: bundled}}}
  - {id: a, run: {download: {repo: bundled}}}
  - {id: sums, run: {download: {repo: bundled}}}
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: the key `name` stands twice
     --> p.yaml:2:1
      |
    1 | name: x
      | ---- the first one
    2 | name: y
      | ^^^^ the second one

    error: two stages have the id `a`
     --> p.yaml:5:10
      |
    4 |   - {id: a, run: {download: {repo: bundled}}}
      |          - the first one
    5 |   - {id: a, run: {download: {repo: bundled}}}
      |          ^ the second one

    error: `sums` is both a stage and a data set
     --> p.yaml:6:10
      |
    6 |   - {id: sums, run: {download: {repo: bundled}}}
      |          ^^^^ a built-in data set has this name
      |
      = help: give the stage another id
    "##);
}

#[test]
fn cycles_show_their_way() {
    let said = bad(
        r#"name: x
stages:
  - {id: model, run: {download: {repo: bundled}}}
  - {id: a, run: {quantize: {model: c, format: nf4}}}
  - {id: b, run: {quantize: {model: a, format: nf4}}}
  - {id: c, run: {quantize: {model: b, format: nf4}}}
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: stages wait for each other
     --> p.yaml:5:37
      |
    5 |   - {id: b, run: {quantize: {model: a, format: nf4}}}
      |                                     ^ a -> c -> b -> a
      |
      = help: remove one of these references
    "##);
}

#[test]
fn unused_axes() {
    let said = bad(
        r#"name: x
stages:
  - {id: model, run: {download: {repo: bundled}}}
sweep: {seed: [1, 2]}
variants: {a: , b: {}}
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: no stage uses the axis `seed`
     --> p.yaml:4:9
      |
    4 | sweep: {seed: [1, 2]}
      |         ^^^^
      |
      = help: use it as "${sweep.seed}", or remove it

    error: no stage uses the axis `variant`
     --> p.yaml:5:1
      |
    5 | variants: {a: , b: {}}
      | ^^^^^^^^
      |
      = help: give the variants paths to change: {STAGE.KEY: value}
    "##);
}

#[test]
fn bad_axes() {
    let said = bad(
        r#"name: x
stages:
  - {id: model, run: {download: {repo: bundled}}}
  - {id: l, run: {lora: {model: model, seed: "${sweep.seed}", rank: "${sweep.rang}"}}}
sweep: {seed: [1, 1, "a b", [2]], rank: {}, variant: [1]}
select: {exclude: [{sed: 1}], zip: [seed, rank], sample: {m: 1}}
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: there is no axis `rang`
     --> p.yaml:4:70
      |
    4 |   - {id: l, run: {lora: {model: model, seed: "${sweep.seed}", rank: "${sweep.rang}"}}}
      |                                                                      ^^^^^^^^^^^^^
      |
      = help: did you mean `rank`?

    error: the axis `seed` has `1` twice
     --> p.yaml:5:19
      |
    5 | sweep: {seed: [1, 1, "a b", [2]], rank: {}, variant: [1]}
      |                -  ^ the second one
      |                |
      |                the first one

    error: `a b` cannot be a label
     --> p.yaml:5:22
      |
    5 | sweep: {seed: [1, 1, "a b", [2]], rank: {}, variant: [1]}
      |                      ^^^^^ labels stand in addresses: no spaces, `,`, `=`, `$` or braces
      |
      = help: give the value a label: `AXIS: {LABEL: value}`

    error: a value of an axis needs a label
     --> p.yaml:5:29
      |
    5 | sweep: {seed: [1, 1, "a b", [2]], rank: {}, variant: [1]}
      |                             ^^^ expected a number or a word, got a list
      |
      = help: write `seed: {LABEL: value, ...}`

    error: the axis `rank` has no values
     --> p.yaml:5:35
      |
    5 | sweep: {seed: [1, 1, "a b", [2]], rank: {}, variant: [1]}
      |                                   ^^^^

    error: the axis `variant` is made by `variants`
     --> p.yaml:5:45
      |
    5 | sweep: {seed: [1, 1, "a b", [2]], rank: {}, variant: [1]}
      |                                             ^^^^^^^
      |
      = help: give this axis another name

    error: there is no axis `sed`
     --> p.yaml:6:21
      |
    6 | select: {exclude: [{sed: 1}], zip: [seed, rank], sample: {m: 1}}
      |                     ^^^
      |
      = help: did you mean `seed`?

    error: `sample` needs `n`
     --> p.yaml:6:58
      |
    6 | select: {exclude: [{sed: 1}], zip: [seed, rank], sample: {m: 1}}
      |                                                          ^^^^^^
      |
      = help: write `sample: {n: 20, seed: 1}`

    error: unknown key `m`
     --> p.yaml:6:59
      |
    6 | select: {exclude: [{sed: 1}], zip: [seed, rank], sample: {m: 1}}
      |                                                           ^ not a key of `sample`
      |
      = help: known here: n, seed
    "##);
}

#[test]
fn interpolation_shows_both_places() {
    let said = bad(
        r#"name: x
vars: {rank: big, list: [1]}
stages:
  - {id: model, run: {download: {repo: "a/${vars.list}", revision: "${vars.rev}"}}}
  - {id: l, run: {lora: {model: model, rank: "${vars.rank}"}}}
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: `l.rank` cannot be the string `big`
     --> p.yaml:2:14
      |
    2 | vars: {rank: big, list: [1]}
      |              ^^^ expected an integer within 1..1024
    ...
    5 |   - {id: l, run: {lora: {model: model, rank: "${vars.rank}"}}}
      |                                               ------------ used here

    error: `${vars.list}` cannot stand inside a string
     --> p.yaml:4:43
      |
    2 | vars: {rank: big, list: [1]}
      |                         --- its value
    3 | stages:
    4 |   - {id: model, run: {download: {repo: "a/${vars.list}", revision: "${vars.rev}"}}}
      |                                           ^^^^^^^^^^^^ it is a list

    error: there is no variable `rev`
     --> p.yaml:4:69
      |
    4 |   - {id: model, run: {download: {repo: "a/${vars.list}", revision: "${vars.rev}"}}}
      |                                                                     ^^^^^^^^^^^
      |
      = help: known here: rank, list
    "##);
}

#[test]
fn unquoted_interpolation_is_recognised() {
    let said = bad(
        r#"name: x
vars: {m: bundled}
stages:
  - {id: m, run: {download: {repo: ${vars.m}}}}
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: this is not valid YAML: while parsing a flow mapping, did not find expected ',' or '}'
     --> p.yaml:4:37
      |
    4 |   - {id: m, run: {download: {repo: ${vars.m}}}}
      |                                     ^
      |
      = help: quote `${...}` inside `{...}` and `[...]`: "${vars.name}"
    "##);
}

#[test]
fn an_overridden_value_says_what_it_overrides() {
    let said = bad(
        r#"name: x
stages:
  - {id: model, run: {download: {repo: bundled}}}
  - {id: l, run: {lora: {model: model, rank: 8}}}
"#,
        &sets(&["l.rank=none"]),
    );
    insta::assert_snapshot!(said, @r##"
    error: `l.rank` cannot be the string `none`
     --> --set:1:8
      |
    1 | l.rank=none
      |        ^^^^ expected an integer within 1..1024
      |
     ::: p.yaml:4:46
      |
    4 |   - {id: l, run: {lora: {model: model, rank: 8}}}
      |                                              ^ overrides this
    "##);
}

#[test]
fn paths_are_checked() {
    let said = bad(
        r#"name: x
stages:
  - {id: model, run: {download: {repo: bundled}}}
  - {id: l, run: {lora: {model: model, rank: 8}}}
profiles: {p: {l.rnk: 1, ll.rank: 2, vars.a: 1}}
variants: {a: {l.rank: 4, sweep.seed: [1]}, b: {rank: 1}}
"#,
        &sets(&["model.repo.x=1"]),
    );
    insta::assert_snapshot!(said, @r##"
    error: there is no stage `ll`
     --> p.yaml:5:26
      |
    5 | profiles: {p: {l.rnk: 1, ll.rank: 2, vars.a: 1}}
      |                          ^^ a path begins with a stage's id, `vars`, `data` or `sweep`
      |
      = help: known here: model, l, vars, data, sweep

    error: there is no variable `a`
     --> p.yaml:5:43
      |
    5 | profiles: {p: {l.rnk: 1, ll.rank: 2, vars.a: 1}}
      |                                           ^
      |
      = help: declare it under `vars`

    error: a variant cannot change the sweep
     --> p.yaml:6:27
      |
    6 | variants: {a: {l.rank: 4, sweep.seed: [1]}, b: {rank: 1}}
      |                           ^^^^^^^^^^
      |
      = help: profiles and --set can; variants are an axis themselves

    error: `rank` is not a path
     --> p.yaml:6:49
      |
    6 | variants: {a: {l.rank: 4, sweep.seed: [1]}, b: {rank: 1}}
      |                                                 ^^^^
      |
      = help: a path is `vars.NAME`, `data.NAME.KEY`, `sweep.AXIS` or `STAGE.KEY...`

    error: there is no `x` here
     --> --set:1:12
      |
    1 | model.repo.x=1
      |            ^ the path goes on below a single value
      |
     ::: p.yaml:3:40
      |
    3 |   - {id: model, run: {download: {repo: bundled}}}
      |                                        ^^^^^^^ this is the string `bundled`
    "##);
}

#[test]
fn contradictions_point_at_the_key() {
    let said = bad(
        r#"name: x
stages:
  - {id: model, run: {download: {repo: bundled}}}
  - {id: t, run: {train: {policy: model, data: sums, steps: 10, stop_at: 11, rewards: {acuracy: 1}}}}
  - {id: e, run: {eval: {policy: t, data: [sums], samples: 4, k: [8]}}}
  - {id: d, run: {download: {repo: "file:x", revision: v1}}}
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: `t`: stop_at must be within 1..=10 (steps)
     --> p.yaml:4:74
      |
    4 |   - {id: t, run: {train: {policy: model, data: sums, steps: 10, stop_at: 11, rewards: {acuracy: 1}}}}
      |                                                                          ^^
      |
      = help: steps is the schedules' horizon; stop_at ends this run earlier

    error: `t`: there is no built-in reward `acuracy`
     --> p.yaml:4:97
      |
    4 |   - {id: t, run: {train: {policy: model, data: sums, steps: 10, stop_at: 11, rewards: {acuracy: 1}}}}
      |                                                                                                 ^
      |
      = help: did you mean `accuracy`?

    error: `e`: greedy answers are all the same: samples above 1 need a temperature above 0
     --> p.yaml:5:60
      |
    5 |   - {id: e, run: {eval: {policy: t, data: [sums], samples: 4, k: [8]}}}
      |                                                            ^
      |
      = help: set a temperature, such as 0.6, or samples: 1

    error: `e`: pass@8 needs 1..=4 as k: there are 4 samples
     --> p.yaml:5:67
      |
    5 |   - {id: e, run: {eval: {policy: t, data: [sums], samples: 4, k: [8]}}}
      |                                                                   ^

    error: `d`: `revision` has no meaning with `repo: file:x`
     --> p.yaml:6:56
      |
    6 |   - {id: d, run: {download: {repo: "file:x", revision: v1}}}
      |                                                        ^^
      |
      = help: leave `revision` out: it chooses among what a repository of the hub holds
    "##);
}

#[test]
fn pinned_axes_must_exist() {
    let said = bad(
        r#"name: x
stages:
  - {id: model, run: {download: {repo: bundled}}}
  - {id: l, run: {lora: {model: model, seed: "${sweep.seed}"}}}
  - {id: e, run: {eval: {policy: {stage: l, at: {seed: 2}}, data: [sums]}}}
  - {id: f, run: {eval: {policy: {stage: model, at: {seed: 1}}, data: [sums]}}}
sweep: {seed: [1, 2]}
select: {exclude: [{seed: 2}]}
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: there is no instance `l@seed=2`
     --> p.yaml:5:42
      |
    5 |   - {id: e, run: {eval: {policy: {stage: l, at: {seed: 2}}, data: [sums]}}}
      |                                          ^
      |
      = help: `select` leaves its point out

    error: `model` does not depend on the axis `seed`
     --> p.yaml:6:42
      |
    6 |   - {id: f, run: {eval: {policy: {stage: model, at: {seed: 1}}, data: [sums]}}}
      |                                          ^^^^^
      |
      = help: remove `seed` from `at`
    "##);
}

#[test]
fn a_report_is_made_once() {
    let said = bad(
        r#"name: x
stages:
  - {id: model, run: {download: {repo: bundled}}}
  - {id: l, run: {eval: {policy: model, data: [sums], seed: "${sweep.seed}"}}}
  - {id: r, run: {report: {gather: [l], title: "seed ${sweep.seed}", rows: sed, baseline: 3, paper: table3}}}
sweep: {seed: [1, 2]}
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: the report `r` would differ along the axis `seed`
     --> p.yaml:5:10
      |
    5 |   - {id: r, run: {report: {gather: [l], title: "seed ${sweep.seed}", rows: sed, baseline: 3, paper: table3}}}
      |          ^ a report is made once and gathers over all points
      |
      = help: take `${...}` and variants' paths out of it

    error: `r`: there is no axis `sed`
     --> p.yaml:5:76
      |
    5 |   - {id: r, run: {report: {gather: [l], title: "seed ${sweep.seed}", rows: sed, baseline: 3, paper: table3}}}
      |                                                                            ^^^
      |
      = help: did you mean `seed`?

    error: `r`: there is no paper table `table3`
     --> p.yaml:5:101
      |
    5 |   - {id: r, run: {report: {gather: [l], title: "seed ${sweep.seed}", rows: sed, baseline: 3, paper: table3}}}
      |                                                                                                     ^^^^^^
      |
      = help: did you mean `table1.3B`?
    "##);
}

#[test]
fn data_entries_are_checked() {
    let said = bad(
        r#"name: x
stages:
  - {id: model, run: {download: {repo: bundled}}}
data:
  a: {}
  b: {builtin: gsm8, n: 1}
  sums: {columns: {prompt: q}, holdout: {n: 0}}
  c: {repo: "no/such/name", tempalte: boxed}
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: `data.a` says neither where its rows are nor which built-in set it is
     --> p.yaml:5:6
      |
    5 |   a: {}
      |      ^^
      |
      = help: give `repo: owner/name`, `repo: file:PATH` or `builtin: NAME`

    error: there is no built-in data set `gsm8`
     --> p.yaml:6:16
      |
    6 |   b: {builtin: gsm8, n: 1}
      |                ^^^^
      |
      = help: did you mean `gsm8k`?

    error: `data.sums.columns` would not be read
     --> p.yaml:7:19
      |
    7 |   sums: {columns: {prompt: q}, holdout: {n: 0}}
      |                   ^^^^^^^^^^^ this set is generated

    error: the hold-out of `data.sums` is empty
     --> p.yaml:7:45
      |
    7 |   sums: {columns: {prompt: q}, holdout: {n: 0}}
      |                                             ^
      |
      = help: n must be 1 or more

    error: `data.c` has no key `tempalte`
     --> p.yaml:8:29
      |
    8 |   c: {repo: "no/such/name", tempalte: boxed}
      |                             ^^^^^^^^ unknown key
      |
      = help: did you mean `template`?
    "##);
}

#[test]
fn training_on_a_holdout() {
    let said = bad(
        r#"name: x
stages:
  - {id: model, run: {download: {repo: bundled}}}
  - {id: t, run: {train: {policy: model, data: sums.holdout, steps: 1}}}
  - {id: e, run: {eval: {policy: t, data: [math500.holdout]}}}
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: this would train on a hold-out
     --> p.yaml:4:48
      |
    4 |   - {id: t, run: {train: {policy: model, data: sums.holdout, steps: 1}}}
      |                                                ^^^^^^^^^^^^
      |
      = help: write `sums`: training leaves its hold-out out

    error: `math500` has no hold-out
     --> p.yaml:5:44
      |
    5 |   - {id: e, run: {eval: {policy: t, data: [math500.holdout]}}}
      |                                            ^^^^^^^^^^^^^^^
      |
      = help: give its entry under `data` one: holdout: {n: 500, seed: 7}
    "##);
}

#[test]
fn stages_have_a_shape() {
    let said = bad(
        r#"name: a b
stages:
  - run: {download: {repo: bundled}}
  - {id: a/b, run: {download: {repo: bundled}}}
  - {id: c, run: download}
  - {id: d, quantize: {}}
  - {id: e, run: {evl: {}}}
  - {id: f, run: {download: {repo: bundled}, lora: {}}}
"#,
        &Options::default(),
    );
    insta::assert_snapshot!(said, @r##"
    error: this cannot be the pipeline's name
     --> p.yaml:1:7
      |
    1 | name: a b
      |       ^^^ expected letters, digits, `_`, `-` and `.`, got the string `a b`

    error: this stage has no id
     --> p.yaml:3:5
      |
    3 |   - run: {download: {repo: bundled}}
      |     ^^^
      |
      = help: add `id: NAME`

    error: `a/b` cannot name a stage
     --> p.yaml:4:10
      |
    4 |   - {id: a/b, run: {download: {repo: bundled}}}
      |          ^^^ expected letters, digits, `_` and `-`

    error: `run` is a map with one key, the stage's kind
     --> p.yaml:5:18
      |
    5 |   - {id: c, run: download}
      |                  ^^^^^^^^ got the string `download`
      |
      = help: write `run: {KIND: {...}}`

    error: this stage does nothing: it has no `run`
     --> p.yaml:6:6
      |
    6 |   - {id: d, quantize: {}}
      |      ^^
      |
      = help: write `run: {KIND: {...}}`

    error: unknown key `quantize`
     --> p.yaml:6:13
      |
    6 |   - {id: d, quantize: {}}
      |             ^^^^^^^^ not a key of a stage
      |
      = help: a stage's kind stands under `run`: `run: {quantize: ...}`

    error: unknown stage kind `evl`
     --> p.yaml:7:19
      |
    7 |   - {id: e, run: {evl: {}}}
      |                   ^^^ expected a kind of stage
      |
      = help: did you mean `eval`?

    error: a stage runs one thing, this one has 2
     --> p.yaml:8:46
      |
    8 |   - {id: f, run: {download: {repo: bundled}, lora: {}}}
      |                                              ^^^^
      |
      = help: write `run: {KIND: {...}}`
    "##);
}
