//! From a frozen plan to jobs: scripts, dependencies, sbatch, scancel.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::frozen::{Frozen, Task};
use crate::pipeline::Resources;
use crate::stages::Kind;
use crate::store::{file_name, write_atomic};
use crate::{Error, Result};

/// What the user says to Slurm; a stage's `resources` come first.
#[derive(Clone, Debug, Default)]
pub struct JobOptions {
    pub partition: Option<String>,
    pub time: Option<String>,
    pub account: Option<String>,
    pub qos: Option<String>,
    pub mail_user: Option<String>,
    pub mail_type: Option<String>,
    /// Further options of sbatch, each one argument.
    pub more: Vec<String>,
}

/// Stage -> the id of its job or array. `finish` has a job of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jobs {
    pub stages: BTreeMap<String, String>,
    pub finish: Option<String>,
}

const FILE: &str = "jobs.json";

impl Jobs {
    pub fn read(frozen: &Frozen) -> Result<Self> {
        let path = frozen.folder().join(FILE);
        let text = std::fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
        serde_json::from_slice(&text).map_err(|e| Error::input(path.display().to_string()).caused_by(e))
    }

    fn write(&self, frozen: &Frozen) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).map_err(|e| Error::failed("cannot write job ids").caused_by(e))?;
        write_atomic(&frozen.folder().join(FILE), &text)
    }

    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.stages.values().chain(&self.finish).map(String::as_str)
    }
}

/// Submits one job per stage, inputs first, and one at the end that publishes reports. What was submitted is written
/// down after each, so that `cancel` finds all of it.
///
/// # Errors
/// What sbatch says; jobs that were submitted before are taken back.
pub fn submit(frozen: &Frozen, program: &Path, options: &JobOptions) -> Result<Jobs> {
    let mut jobs = Jobs::default();
    // Slurm makes no folders: a job whose log has none ends without a word.
    for name in ["logs", "state"] {
        let path = frozen.folder().join(name);
        std::fs::create_dir_all(&path).map_err(|e| Error::io("create", &path, e))?;
    }
    frozen.write()?;
    jobs.write(frozen)?;
    let result = submit_all(frozen, program, options, &mut jobs);
    if result.is_err() {
        // The first error is the one to show.
        let _ = cancel(&jobs);
    }
    result.map(|()| jobs)
}

fn submit_all(frozen: &Frozen, program: &Path, options: &JobOptions, jobs: &mut Jobs) -> Result<()> {
    for task in &frozen.tasks {
        let first = &frozen.graph.instances[task.instances[0]];
        let mut args = arguments(frozen, &task.stage, options);
        args.extend(resources(&first.resources, options));
        if task.instances.len() > 1 {
            args.push(format!("--array=0-{}", task.instances.len() - 1));
        }
        let after = dependency(frozen, task, jobs);
        if !after.is_empty() {
            args.push(format!("--dependency={after}"));
        }
        let script = script(frozen, program, Some(&task.stage))?;
        let id = sbatch(&args, &script)?;
        jobs.stages.insert(task.stage.clone(), id);
        jobs.write(frozen)?;
    }
    if !jobs.stages.is_empty() {
        let mut args = arguments(frozen, "finish", options);
        args.extend(resources(&Resources::default(), options));
        let ids: Vec<&str> = jobs.stages.values().map(String::as_str).collect();
        args.push(format!("--dependency=afterany:{}", ids.join(":")));
        let script = script(frozen, program, None)?;
        jobs.finish = Some(sbatch(&args, &script)?);
        jobs.write(frozen)?;
    }
    Ok(())
}

/// Every argument stands alone: no shell takes them apart.
fn arguments(frozen: &Frozen, stage: &str, options: &JobOptions) -> Vec<String> {
    let logs = frozen.folder().join("logs");
    let mut args = vec![
        "--parsable".to_owned(),
        format!("--job-name=qerl-{}-{stage}", frozen.graph.name),
        // %-signs would be filled in by Slurm.
        format!(
            "--output={}/{}-%j.log",
            logs.display().to_string().replace('%', "%%"),
            file_name(stage).replace('%', "%%")
        ),
        "--open-mode=append".to_owned(),
        "--requeue".to_owned(),
        "--kill-on-invalid-dep=yes".to_owned(),
        // Time for a checkpoint before a limit strikes; the script's shell has become qerl by then.
        "--signal=B:TERM@60".to_owned(),
    ];
    let given = [
        ("account", &options.account),
        ("qos", &options.qos),
        ("mail-user", &options.mail_user),
        ("mail-type", &options.mail_type),
    ];
    args.extend(given.into_iter().filter_map(|(key, value)| Some(format!("--{key}={}", value.as_ref()?))));
    args.extend(options.more.iter().cloned());
    args
}

fn resources(own: &Resources, options: &JobOptions) -> Vec<String> {
    let mut args = Vec::new();
    if own.cpus > 0 {
        args.push(format!("--cpus-per-task={}", own.cpus));
    }
    if own.gpus > 0 {
        args.push(format!("--gres=gpu:{}", own.gpus));
    }
    // Checked when the pipeline was read.
    if let Ok(Some(bytes)) = own.memory_bytes() {
        args.push(format!("--mem={}M", bytes.div_ceil(1 << 20)));
    }
    if let Some(time) = own.time.as_ref().or(options.time.as_ref()) {
        args.push(format!("--time={time}"));
    }
    if let Some(partition) = own.partition.as_ref().or(options.partition.as_ref()) {
        args.push(format!("--partition={partition}"));
    }
    args
}

/// What a task waits for. A job checks its inputs itself as well: Slurm forgets jobs, and then calls them satisfied.
fn dependency(frozen: &Frozen, task: &Task, jobs: &Jobs) -> String {
    let needs: Vec<Vec<usize>> = task.instances.iter().map(|i| frozen.waits_for(*i).into_iter().collect()).collect();
    let report = frozen.graph.instances[task.instances[0]].kind == Kind::Report;
    let mut parts = Vec::new();
    for other in frozen.tasks.iter().filter(|t| t.stage != task.stage) {
        let Some(id) = jobs.stages.get(&other.stage) else { continue };
        let of_other = |list: &Vec<usize>| -> Vec<usize> {
            list.iter().copied().filter(|i| other.instances.contains(i)).collect()
        };
        let wanted: Vec<Vec<usize>> = needs.iter().map(of_other).collect();
        if wanted.iter().all(Vec::is_empty) {
            continue;
        }
        let in_step = task.instances.len() == other.instances.len()
            && wanted.iter().zip(&other.instances).all(|(wanted, own)| wanted.as_slice() == [*own]);
        let kind = match (report, other.instances.len()) {
            // A report shows failed instances beside the others.
            (true, _) => "afterany",
            (false, 1) => "afterok",
            (false, _) if in_step => "aftercorr",
            // One failed point must not stop those that do not need it.
            (false, _) => "afterany",
        };
        parts.push(format!("{kind}:{id}"));
    }
    parts.join(",")
}

/// The batch script: the shell becomes `qerl exec-stage`.
fn script(frozen: &Frozen, program: &Path, stage: Option<&str>) -> Result<std::path::PathBuf> {
    let path = frozen.folder().join(format!("{}.sh", file_name(stage.unwrap_or("finish."))));
    let what = stage.map_or_else(|| "--finish".to_owned(), |stage| format!("--stage {}", quoted(stage)));
    let (program, folder) = (quoted(&program.to_string_lossy()), quoted(&frozen.folder().to_string_lossy()));
    // What was asked for here holds for the jobs too.
    let device = crate::engine::cuda::device::chosen()?;
    let text = format!("#!/bin/sh\nexec {program} --device {device} exec-stage --plan {folder} {what}\n");
    write_atomic(&path, text.as_bytes())?;
    Ok(path)
}

/// As one word of sh, whatever is in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn sbatch(args: &[String], script: &Path) -> Result<String> {
    let output = run(Command::new("sbatch").args(args).arg(script))?;
    // `ID` or `ID;CLUSTER`.
    let id = output.trim().split(';').next().unwrap_or_default().to_owned();
    if id.is_empty() || !id.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Error::failed(format!("sbatch answered `{}`, which is no job's id", output.trim())));
    }
    Ok(id)
}

/// Takes every job back.
///
/// # Errors
/// What scancel says.
pub fn cancel(jobs: &Jobs) -> Result<()> {
    let ids: Vec<&str> = jobs.all().collect();
    if ids.is_empty() {
        return Ok(());
    }
    run(Command::new("scancel").args(ids)).map(|_| ())
}

/// Runs one of Slurm's programs; gives its standard output.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(std::process::Stdio::null()).output().map_err(|e| {
        Error::missing(format!("cannot start {name}"))
            .caused_by(e)
            .hint("--executor slurm needs Slurm's commands: run it on a login node of the cluster")
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::failed(format!("{name} refused: {}", said.trim()))
            .hint("partition, time and account are named by --partition, --time, --account or a stage's `resources`"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_sh_stay_words() {
        assert_eq!(quoted("a b'; rm -rf $HOME `x`"), "'a b'\\''; rm -rf $HOME `x`'");
    }

    #[test]
    fn resources_become_options() {
        let own = Resources {
            gpus: 2,
            cpus: 4,
            memory: Some("1.5GiB".to_owned()),
            time: None,
            partition: Some("gpu".to_owned()),
        };
        let options =
            JobOptions { time: Some("60".to_owned()), partition: Some("debug".to_owned()), ..JobOptions::default() };
        assert_eq!(
            resources(&own, &options),
            ["--cpus-per-task=4", "--gres=gpu:2", "--mem=1536M", "--time=60", "--partition=gpu"]
        );
    }
}
