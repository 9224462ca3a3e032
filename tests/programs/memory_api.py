"""torch.cuda's questions about memory, and its limit per process; prints one JSON line."""

import json

import torch

MIB = 2**20


def try_to_allocate(num_bytes: int) -> str | None:
    """The message of the OutOfMemoryError, None if it went well."""
    try:
        torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        return str(error)
    return None


def main() -> None:
    """Ask, allocate, ask again, limit, run out, free, ask again."""
    found: dict[str, object] = {}
    found["free_at_start"], found["total"] = torch.cuda.mem_get_info()
    found["total_by_properties"] = torch.cuda.get_device_properties(0).total_memory
    found["name"] = torch.cuda.get_device_name(0)

    block = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    found["free_with_512_mib"] = torch.cuda.mem_get_info()[0]
    found["allocated"] = torch.cuda.memory_allocated()
    del block
    found["free_when_cached"] = torch.cuda.mem_get_info()[0]
    found["reserved_when_cached"] = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    found["free_when_emptied"] = torch.cuda.mem_get_info()[0]
    found["reserved_when_emptied"] = torch.cuda.memory_reserved()

    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(0.25)
    found["message_over_fraction"] = try_to_allocate(total // 2)
    found["message_under_fraction"] = try_to_allocate(total // 8)
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()
    found["message_after_lifting"] = try_to_allocate(total // 2)
    torch.cuda.empty_cache()
    found["message_over_device"] = try_to_allocate(2 * total)
    found["stats"] = {
        name: value
        for name, value in torch.cuda.memory_stats().items()
        if ".all." in name or "." not in name
    }
    found["summary_has_a_table"] = "Allocated memory" in torch.cuda.memory_summary()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
