// Device memory of CUDA graphs: a JSON line for each case of CASES, each in a process of its own.
#include <cstdio>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

struct Parameters2K { char bytes[2000]; };
struct Parameters4K { char bytes[4000]; };
__global__ void plain(float *x, int n) { if (n < 0) x[0] = 1; }
__global__ void with_2k(float *x, Parameters2K p) { if (p.bytes[5] == 7) x[0] = 1; }
__global__ void with_4k(float *x, Parameters4K p) { if (p.bytes[5] == 7) x[0] = 1; }

struct Case { const char *kind; int branches, nodes, graphs; };
static const Case CASES[] = {
    {"kernel", 1, 1, 1}, {"kernel", 1, 1, 1024}, {"kernel", 1, 2, 1024}, {"kernel", 1, 4, 1024}, {"kernel", 1, 8, 1024},
    {"kernel", 1, 12, 2091}, {"kernel", 1, 16, 512}, {"kernel", 1, 32, 512}, {"kernel", 1, 64, 256}, {"kernel", 1, 128, 128},
    {"kernel", 1, 400, 35}, {"kernel", 1, 512, 32}, {"kernel", 1, 2048, 32}, {"kernel", 2, 16, 512}, {"kernel", 4, 16, 512},
    {"kernel", 8, 16, 512}, {"kernel", 8, 512, 32}, {"2 KiB of parameters", 1, 8, 1024}, {"2 KiB of parameters", 1, 512, 32},
    {"4 KiB of parameters", 1, 8, 1024}, {"4 KiB of parameters", 1, 512, 32}, {"copy", 1, 8, 1024}, {"copy", 1, 512, 32},
    {"memset", 1, 8, 1024}, {"memset", 1, 512, 32}};

static float *x, *y;
static cudaStream_t streams[8];
static cudaEvent_t begin_event, events[8];

static long used_kib() {
  size_t free_bytes, total;
  cudaDeviceSynchronize();
  cudaMemGetInfo(&free_bytes, &total);
  return -(long)(free_bytes >> 10);
}

static void give(char kind, cudaStream_t stream) {
  if (kind == 'k') plain<<<64, 256, 0, stream>>>(x, 1);
  if (kind == '2') with_2k<<<64, 256, 0, stream>>>(x, Parameters2K{});
  if (kind == '4') with_4k<<<64, 256, 0, stream>>>(x, Parameters4K{});
  if (kind == 'c') cudaMemcpyAsync(x, y, 4096, cudaMemcpyDeviceToDevice, stream);
  if (kind == 'm') cudaMemsetAsync(x, 0, 4096, stream);
}

static cudaGraphExec_t capture(const Case &c) {
  cudaGraph_t graph;
  cudaGraphExec_t made;
  cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeThreadLocal);
  cudaEventRecord(begin_event, streams[0]);
  for (int b = 1; b < c.branches; b++) cudaStreamWaitEvent(streams[b], begin_event, 0);
  for (int i = 0; i < c.nodes; i++) give(c.kind[0], streams[i % c.branches]);
  for (int b = 1; b < c.branches; b++) {
    cudaEventRecord(events[b], streams[b]);
    cudaStreamWaitEvent(streams[0], events[b], 0);
  }
  cudaStreamEndCapture(streams[0], &graph);
  cudaGraphInstantiate(&made, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch);
  cudaGraphDestroy(graph);
  return made;
}

static void run(const Case &c) {
  cudaMalloc(&x, 1 << 20), cudaMalloc(&y, 1 << 20), cudaEventCreate(&begin_event);
  for (int b = 0; b < 8; b++) cudaStreamCreateWithFlags(&streams[b], cudaStreamNonBlocking), cudaEventCreate(&events[b]);
  for (char kind : std::string("k24cm")) give(kind, streams[0]);
  long before = used_kib();
  std::string figures;
  for (int round = 0; round < 2; round++) {
    std::vector<cudaGraphExec_t> made;
    for (int g = 0; g < c.graphs; g++) made.push_back(capture(c));
    for (auto graph : made) cudaGraphLaunch(graph, streams[0]);
    figures += ", \"" + std::string(round ? "again" : "launched") + "_kib\": " + std::to_string(used_kib() - before);
    for (auto graph : made) cudaGraphExecDestroy(graph);
    if (!round) figures += ", \"destroyed_kib\": " + std::to_string(used_kib() - before);
  }
  printf("{\"kind\": \"%s\", \"branches\": %d, \"nodes\": %d, \"graphs\": %d%s}\n", c.kind, c.branches, c.nodes, c.graphs,
         figures.c_str());
}

int main() {
  for (const Case &c : CASES) {
    if (fork()) {
      wait(nullptr);
      continue;
    }
    run(c);
    fflush(stdout);
    _exit(0);
  }
}
