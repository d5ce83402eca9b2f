//! rl_losses.json: what is trained on, schedules, and text rewards.

use std::collections::BTreeMap;

use qerl::rl::rewards::{minerva, text};
use qerl::rl::schedule::learning_rate;
use qerl::rl::select::{completion_length, has_signal, overlong_penalty};
use qerl::rl::{Aqn, AqnForm, Decay, LrSchedule};
use serde_json::Value;

use super::{counts, golden, near, number, row, rows_near};

#[test]
fn dynamic_sampling_keeps_whole_groups_with_signal_in_order() {
    let Some(file) = golden() else { return };
    for case in file["dynamic_sampling"].as_array().unwrap() {
        let wanted = usize::try_from(case["train_batch_groups"].as_u64().unwrap()).unwrap();
        let limit = case["max_num_gen_batches"].as_u64().unwrap() as usize;
        let mut selected = Vec::new();
        let mut used = 0;
        for (b, batch) in case["gen_batches"].as_array().unwrap().iter().enumerate() {
            if selected.len() >= wanted || limit > 0 && used == limit {
                break;
            }
            used += 1;
            let groups = batch.as_array().unwrap();
            let before = selected.len();
            selected.extend(groups.iter().enumerate().filter(|(_, g)| has_signal(&row(g))).map(|(g, _)| (b, g)));
            let log = &case["expected"]["log"][b];
            assert_eq!(log["qualified"].as_u64().unwrap() as usize, selected.len() - before);
            assert_eq!(log["total_qualified"].as_u64().unwrap() as usize, selected.len());
        }
        let expected = &case["expected"];
        assert_eq!(expected["num_gen_batches"].as_u64().unwrap() as usize, used);
        let ok = expected["status"] == "ok";
        assert_eq!(ok, selected.len() >= wanted);
        let key = if ok { "selected" } else { "qualified" };
        let want: Vec<(usize, usize)> =
            expected[key].as_array().unwrap().iter().map(counts).map(|p| (p[0], p[1])).collect();
        let surplus = selected.len().saturating_sub(wanted);
        assert_eq!(surplus, expected["surplus_dropped"].as_u64().unwrap_or(0) as usize);
        selected.truncate(wanted);
        assert_eq!(selected, want);
    }
}

#[test]
fn soft_overlong_eos_and_lr_follow_the_file() {
    let Some(file) = golden() else { return };
    for case in file["soft_overlong"].as_array().unwrap() {
        let max = case["max_completion_len"].as_u64().unwrap() as usize;
        let cache = case["soft_punish_cache"].as_u64().unwrap() as usize;
        let factor = number(&case["penalty_factor"]);
        for (i, length) in counts(&case["lengths"]).into_iter().enumerate() {
            near("eq. 13", overlong_penalty(length, max, cache, 1.0), number(&case["trl_open_r1"][i]));
            // verl has no lower clip: the same up to max_completion.
            if length <= max {
                near("verl", overlong_penalty(length, max, cache, factor), number(&case["verl_no_lower_clip"][i]));
            }
            near("capped", overlong_penalty(length, max, cache, factor), number(&case["openrlhf_capped"][i]));
        }
    }
    for case in file["eos_mask"].as_array().unwrap() {
        let eos: Vec<u32> = counts(&case["eos_token_ids"]).into_iter().map(|t| t as u32).collect();
        let rows = case["completion_ids"].as_array().unwrap();
        let mut cut = 0.0;
        for (i, ids) in rows.iter().enumerate() {
            let ids: Vec<u32> = counts(ids).into_iter().map(|t| t as u32).collect();
            let (length, truncated) = completion_length(&ids, &eos);
            assert_eq!(length as u64, case["lengths"][i].as_u64().unwrap());
            assert_eq!(u64::from(truncated), case["truncated"][i].as_u64().unwrap());
            let mask: Vec<f64> = (0..ids.len()).map(|j| f64::from(u8::from(j < length))).collect();
            rows_near("mask", &mask, &row(&case["completion_mask"][i]));
            let counted: Vec<f64> = mask.iter().map(|m| if truncated { 0.0 } else { *m }).collect();
            rows_near("mask_truncated", &counted, &row(&case["completion_mask_if_mask_truncated"][i]));
            cut += f64::from(u8::from(truncated));
        }
        near("clipped_ratio", cut / rows.len() as f64, number(&case["clipped_ratio"]));
    }
    for case in file["lr_schedule"].as_array().unwrap() {
        let total = case["total_steps"].as_u64().unwrap();
        for (step, want) in row(&case["lr_at_step"]).into_iter().enumerate() {
            let got = learning_rate(
                LrSchedule::Cosine,
                number(&case["lr"]),
                number(&case["warmup_ratio"]),
                step as u64,
                total,
            );
            assert!((got - want).abs() <= 1e-9 * number(&case["lr"]), "step {step}: {got} {want}");
        }
    }
}

#[test]
fn aqn_follows_the_code_and_the_paper() {
    let Some(file) = golden() else { return };
    for case in file["aqn"].as_array().unwrap() {
        let total = case["total_steps"].as_u64().unwrap();
        let aqn = |decay, form| Aqn {
            decay,
            form,
            sigma_start: number(&case["sigma_start"]),
            sigma_end: number(&case["sigma_end"]),
            stages: case["num_stages"].as_u64().unwrap() as usize,
            ..Aqn::default()
        };
        let code = aqn(Decay::Exponential, AqnForm::Code);
        rows_near("trend", &code.trend(), &row(&case["sigma_trend"]));
        for (step, want) in row(&case["sigma_by_update_step"]).into_iter().enumerate() {
            near(&format!("step {step}"), code.sigma(step as u64, total), want);
        }
        for (name, want) in case["variants_sigma_trend"].as_object().into_iter().flatten() {
            let decay: Decay = serde_json::from_value(Value::from(name.as_str())).unwrap();
            rows_near(name, &aqn(decay, AqnForm::Code).trend(), &row(want));
            for (step, want) in row(&case["variants_sigma_by_update_step"][name]).into_iter().enumerate() {
                near(name, aqn(decay, AqnForm::Code).sigma(step as u64, total), want);
            }
        }
        if let Some(paper) = case["paper_algorithm1"]["sigma_by_step_1_to_M"].as_array() {
            for (i, want) in paper.iter().enumerate() {
                let got = aqn(Decay::Exponential, AqnForm::Paper).sigma(i as u64 + 1, total);
                near(&format!("paper, step {}", i + 1), got, number(want));
            }
        }
        if let Some(resume) = case["resume"].as_object() {
            let step = resume["resume_at_global_step"].as_u64().unwrap();
            // A function of the optimizer step: nothing to restore, nothing to count wrongly.
            near("resume", code.sigma(step + 1, total), number(&resume["correct_sigma_next_step"]));
        }
    }
}

#[test]
fn temperature_divides_logits_not_log_probs() {
    let Some(file) = golden() else { return };
    let case = &file["logps_from_logits"];
    for (temperature, want) in case["by_temperature"].as_object().unwrap() {
        let t: f64 = temperature.parse().unwrap();
        for (i, positions) in case["logits"].as_array().unwrap().iter().enumerate() {
            for (j, logits) in positions.as_array().unwrap().iter().enumerate() {
                let token = case["token_ids"][i][j].as_u64().unwrap() as usize;
                let scaled: Vec<f64> = row(logits).iter().map(|l| l / t).collect();
                let max = scaled.iter().copied().fold(f64::MIN, f64::max);
                let z = max + scaled.iter().map(|l| (l - max).exp()).sum::<f64>().ln();
                let entropy: f64 = scaled.iter().map(|l| -(l - z).exp() * (l - z)).sum();
                near("logp", scaled[token] - z, number(&want["logps"][i][j]));
                near("entropy", entropy, number(&want["entropy"][i][j]));
            }
        }
    }
}

#[test]
fn qerls_rewards_score_as_qerl_does() {
    let Some(file) = golden() else { return };
    for case in file["rewards_qerl"].as_array().unwrap() {
        let (completion, answer) = (case["completion"].as_str().unwrap(), case["answer"].as_str().unwrap());
        let scores = BTreeMap::from([
            ("gsm8k_score", text::gsm8k_score(completion, answer)),
            ("correctness_reward_func", text::qerl_correctness(completion, answer)),
            ("int_reward_func", text::qerl_int(completion)),
            ("strict_format_reward_func", text::qerl_strict_format(completion)),
            ("soft_format_reward_func", text::qerl_soft_format(completion)),
            ("think_reward_func", text::qerl_think_format(completion)),
            ("xmlcount_reward_func", text::xml_count(completion)),
            ("dapo_score", minerva::score(completion, answer)),
        ]);
        for (name, got) in scores {
            near(&format!("{name} of {completion:?}"), got, number(&case[name]));
        }
        assert_eq!(text::extract_answer(completion), case["extract_xml_answer"].as_str().unwrap());
        assert_eq!(text::gsm8k_strict(completion).as_deref(), case["gsm8k_extract_strict"].as_str(), "{completion:?}");
        assert_eq!(text::gsm8k_flexible(completion), case["gsm8k_extract_flexible"].as_str(), "{completion:?}");
        assert_eq!(minerva::prediction(completion), case["dapo_pred"].as_str().unwrap(), "{completion:?}");
    }
}
