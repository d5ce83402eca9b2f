"""The peers of `cargo bench --bench cpu`, on the same machine: transformers (f32, bf16) and llama.cpp.

    pip install torch transformers peft llama-cpp-python
    python3 benches/peers.py MODEL_DIR [--gguf FILE] [--only transformers|train|llama]

Prints one JSON line per figure. Work: 64 new tokens sampled after 64 (llama.cpp: 127 after 64), LoRA r16 on seven
projections forward and backward over 8 x 128 tokens. Best of two counted runs after a warm-up.
"""
import argparse
import json
import resource
import time


def peak_gib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def best(work, runs=2):
    work()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def transformers_decode(model_dir, dtype, batches):
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=getattr(torch, dtype)).eval()
    for batch in batches:
        ids = torch.randint(100, 40000, (batch, 64))
        mask = torch.ones_like(ids)

        def work():
            with torch.no_grad():
                model.generate(ids, attention_mask=mask, do_sample=True, min_new_tokens=64, max_new_tokens=64,
                               top_k=0, pad_token_id=0)

        seconds = best(work)
        print(json.dumps({"engine": "transformers " + dtype, "work": "decode", "batch": batch,
                          "tok_s": round(batch * 64 / seconds, 1)}), flush=True)


def transformers_train(model_dir, dtype):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=getattr(torch, dtype))
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=16, target_modules=targets))
    ids = torch.randint(100, 40000, (8, 128))

    def work():
        model.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()

    seconds = best(work)
    print(json.dumps({"engine": "transformers+peft " + dtype, "work": "lora forward+backward 8x128",
                      "tok_s": round(1024 / seconds, 1), "peak_gib": round(peak_gib(), 2)}), flush=True)


def llama_decode(gguf, threads):
    from llama_cpp import Llama

    llama = Llama(gguf, n_ctx=512, n_threads=threads, n_threads_batch=threads, verbose=False, logits_all=False)
    prompt = list(range(1000, 1064))

    def work():
        count = 0
        llama.reset()
        for token in llama.generate(prompt, temp=1.0, top_k=0, top_p=1.0, reset=True):
            if count == 0:
                work.start = time.perf_counter()
            count += 1
            if count == 128:
                break
        work.rate = 127 / (time.perf_counter() - work.start)

    rates = []
    for _ in range(3):
        work()
        rates.append(work.rate)
    print(json.dumps({"engine": "llama.cpp " + gguf.rsplit(".", 2)[-2], "work": "decode", "batch": 1,
                      "tok_s": round(max(rates[1:]), 1)}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir")
    parser.add_argument("--gguf")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=["transformers", "train", "llama"])
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    if args.only != "llama":
        import torch

        torch.set_num_threads(args.threads)
    if args.only in (None, "transformers"):
        transformers_decode(args.model_dir, args.dtype, [1, 8, 32])
    if args.only in (None, "train"):
        transformers_train(args.model_dir, args.dtype)
    if args.gguf and args.only in (None, "llama"):
        llama_decode(args.gguf, args.threads)


if __name__ == "__main__":
    main()
