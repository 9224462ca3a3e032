"""A graph with a node whose body runs only under a condition, replayed; prints what X then is."""

import json

import torch

X = torch.ones(4, device="cuda")
IS_ON = torch.ones((), dtype=torch.bool, device="cuda")


def main() -> None:
    """Captures a body into a conditional node."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        X.add_(1)
        graph.begin_capture_to_if_node(IS_ON)
        X.mul_(2)
        graph.end_capture_to_conditional_node()
        X.add_(1)
    graph.replay()
    print(json.dumps({"shape": list(X.shape)}))


if __name__ == "__main__":
    main()
