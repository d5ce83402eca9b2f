//! Data sets: readers, chat templates and prompts, and the `split` stage.

mod data {
    mod line;
    mod prompts;
    mod sets;
    mod stage;
    mod templates;
}
