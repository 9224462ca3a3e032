"""Answers requests under a guard on the CPU, with errors in some; prints an answer a scenario."""

import gc
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import torch
from contract import fail, raised
from training import LENGTH, VOCABULARY, WIDTH, Faults

import ullage
from ullage.act.guard.requests.inference import find_cache_need

RUNG = {"cache": "lean"}
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
}  # fmt: skip


class Small(torch.nn.Module):
    """Logits of the next token by the two before it; nothing in it is random."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.head = torch.nn.Linear(2 * WIDTH, VOCABULARY)

    def forward(self, tokens):
        """tokens are (rows, tokens), the result (rows, VOCABULARY)."""
        return self.head(self.embedding(tokens[:, -2:]).flatten(1).tanh())


class Service:
    """A model that continues prompts, and may fail once at an operation, or in a thread."""

    def __init__(self):
        torch.manual_seed(1)
        self.model = Small()
        self.caches = []
        self.errors = {}

    @torch.no_grad()
    def reply(self, prompt, *, samples=False, cache="full"):
        """LENGTH tokens after a prompt (rows, LENGTH)."""
        self.caches.append(cache)
        tokens = prompt
        for _ in range(LENGTH):
            logits = self.model(tokens)
            self.errors.pop("token", lambda: None)()
            chosen = torch.multinomial(logits.softmax(-1), 1) if samples else logits.argmax(-1)
            tokens = torch.cat([tokens, chosen.view(-1, 1)], 1)
        return tokens.tolist()


def prompts(count=1):
    """Prompts of two rows."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(VOCABULARY, (2, LENGTH), generator=generator) for _ in range(count)]


def threads_at_once():
    """Eight threads, of which every other fails in its first try; and one that is refused."""
    service = Service()
    given = prompts(9)
    expected = [service.reply(prompt) for prompt in given]
    answers = [None] * len(given)
    barrier = threading.Barrier(len(given))

    def run(index):
        barrier.wait()
        try:
            if index == len(given) - 1:
                guard.answer(lambda prompt, cache=None: fail(), given[index])
            with Faults([20 + index] if index % 2 else []):
                answers[index] = guard.answer(service.reply, given[index])
        except ullage.RequestTooLarge as error:
            answers[index] = type(error).__name__

    with ullage.guard_inference(service.model, rungs=[RUNG]) as guard:
        threads = [threading.Thread(target=run, args=(index,)) for index in range(len(given))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    is_same = answers[:-1] == expected[:-1]
    return [is_same, answers[-1], guard.num_answers, guard.num_recoveries, guard.num_refusals]


def waits_for_another():
    """A request that fits only when another has ended, and one that would wait for too long."""
    service = Service()
    tries, has_begun, may_end = [], threading.Event(), threading.Event()

    def large(cache=None):
        has_begun.set()
        assert may_end.wait(60)
        return "large"

    answers = []
    with ullage.guard_inference(service.model, rungs=[RUNG]) as guard:
        thread = threading.Thread(target=lambda: answers.append(guard.answer(large)))
        thread.start()
        assert has_begun.wait(60)
        answers.append(guard.answer(lambda cache=None: answer_beside(tries, may_end, cache)))
        thread.join()
    may_end.clear()
    has_begun.clear()
    with ullage.guard_inference(service.model, rungs=[RUNG], wait_s=0.01) as guard:
        thread = threading.Thread(target=lambda: answers.append(guard.answer(large)))
        thread.start()
        assert has_begun.wait(60)
        answers.append(raised(lambda: guard.answer(lambda cache=None: fail())).partition(":")[0])
        may_end.set()
        thread.join()
    return [sorted(answers), tries]


def wait_for_each_other():
    """Two requests of which each fails beside the other, and the first to fail waits."""
    service = Service()
    tries = {"first": [], "last": []}
    both_run, has_failed = threading.Barrier(2), threading.Event()

    def answer(name):
        def handler(cache=None):
            tries[name].append(cache)
            if len(tries[name]) < 3:
                both_run.wait(60)
            if name == "last" and len(tries[name]) == 2:
                assert has_failed.wait(60)
                time.sleep(0.3)  # until the first waits
            if len(tries[name]) < 3:
                if name == "first" and len(tries[name]) == 2:
                    has_failed.set()
                fail()
            return name

        try:
            return guard.answer(handler)
        except ullage.RequestTooLarge as error:
            return type(error).__name__

    with ullage.guard_inference(service.model, rungs=[RUNG]) as guard, ThreadPoolExecutor() as pool:
        return [list(pool.map(answer, tries)), tries]


def answer_beside(tries, may_end, cache):
    """Fails twice, as long as another request has the memory, which it then may give back."""
    tries.append(cache)
    if len(tries) < 3:
        if len(tries) == 2:
            may_end.set()
        fail()
    return "small"


def refused():
    """Requests that cannot be run again, and how the next one ends."""
    service = Service()
    (prompt,) = prompts()
    expected = service.reply(prompt)

    def change_weights():
        service.model.head.weight.mul_(1.0)
        fail()

    def change_prompt():
        prompt.add_(0)
        fail()

    def take_cache(prompt, *, past_key_values=None, cache=None):
        return fail()

    answers = {}
    with ullage.guard_inference(service.model, rungs=[RUNG]) as guard:
        for error in (change_weights, change_prompt):
            service.errors["token"] = error
            answers[error.__name__] = raised(lambda: guard.answer(service.reply, prompt))
        cache = object()
        answers["cache"] = raised(lambda: guard.answer(take_cache, prompt, past_key_values=cache))
        answers["all rungs"] = raised(lambda: guard.answer(lambda cache="full": fail()))
        answers["no keyword"] = raised(lambda: guard.answer(lambda prompt: prompt, prompt))
        answers["own error"] = raised(lambda: guard.answer(lambda cache=None: [][0]))
        answers["next"] = guard.answer(service.reply, prompt) == expected
        answers["counts"] = [guard.num_answers, guard.num_recoveries, guard.num_refusals]
    answers["closed"] = raised(lambda: guard.answer(service.reply, prompt))
    answers["empty rung"] = raised(lambda: ullage.guard_inference(service.model, rungs=[{}]))
    return answers


def needs():
    """Bytes of the caches of requests to a Llama in float32."""
    model = torch.nn.Linear(2, 2)
    model.config = SimpleNamespace(to_dict=lambda: LLAMA)
    model.generation_config = SimpleNamespace(max_length=20, num_beams=1)
    (prompt,) = prompts()
    requests = {
        "new tokens": ([prompt], {"max_new_tokens": 10}),
        "beams": ([], {"input_ids": prompt, "max_new_tokens": 10, "num_beams": 3}),
        "length": ([{"input_ids": prompt}], {}),
        "no prompt": ([torch.ones(2, LENGTH)], {"max_new_tokens": 10}),
    }
    found = {name: find_cache_need(model, *request) for name, request in requests.items()}
    return {name: need and [need.rows, need.needed_bytes] for name, need in found.items()}


def generated():
    """transformers' generate with an error in its first try, and a rung of another cache."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**LLAMA)).eval()
    (prompt,) = prompts()
    settings = {"max_new_tokens": 5, "do_sample": True, "pad_token_id": 0}
    torch.manual_seed(3)
    with Faults() as faults:
        expected = model.generate(prompt, **settings)
    equal = []
    with ullage.guard_inference(model, rungs=[{"use_cache": False}]) as guard:
        for number in range(1, faults.count, faults.count // 7):
            torch.manual_seed(3)
            with Faults([number]):
                equal.append(
                    torch.equal(guard.answer(model.generate, prompt, **settings), expected)
                )
        with Faults(range(1, 10 * faults.count)):
            text = raised(lambda: guard.answer(model.generate, prompt, **settings))
    return [equal, guard.num_recoveries, text]


SCENARIOS = (threads_at_once, waits_for_another, wait_for_each_other, refused, needs,
             generated)  # fmt: skip

if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.freeze()
    names = sys.argv[1:]
    print(json.dumps({each.__name__: each() for each in SCENARIOS if each.__name__ in names}))
