// A GPU for one kernel, on one core: every thread is a fiber, which runs until it has to wait for others.
//
// In front of it stand the functions of the emitted text that are C++; this file has those that are machine
// code there, by the same names. What is copied asynchronously arrives as late as it may, or at once
// (`late`); shared memory begins as numbers that are none. Threads take turns from one wait to the next, in an
// order that `seed` decides, so a missing barrier shows where the wrong turn comes, not always. Clocks,
// and the caches of a GPU, are not here.

// What is here is optimized, unlike the kernel behind it, which has far more text and runs once.
#pragma GCC push_options
#pragma GCC optimize("O2")

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(threads, blocks)
#define uint unsigned int
#define uchar unsigned char
#define ushort unsigned short
#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")

struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(8) int2 { int x, y; };
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
template <class T> static inline T max(T a, T b) { return a > b ? a : b; }
template <class T> static inline T min(T a, T b) { return a < b ? a : b; }

template <class To, class From> static inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "bits of one size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
static inline int __float_as_int(float x) { return bits_as<int>(x); }
static inline float __int_as_float(int x) { return bits_as<float>(x); }
static inline unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }
static inline float __uint_as_float(unsigned x) { return bits_as<float>(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }

// ---- threads ----------------------------------------------------------------------------------------

constexpr int THREADS = 256, LANES = 32, WORDS = 6;
constexpr size_t STACK = 256 * 1024;
constexpr int MOST_POLLS = 2000;  // by who waits for what was lost

struct Copy { void* to; const void* from; int size; };
using Group = std::vector<Copy>;
struct Barrier { int arrived = 0, phase = 0, flag = 0, found = 0; };
struct Exchange { uint32_t given[LANES][WORDS], found[LANES][WORDS]; int arrived = 0, phase = 0; };
struct Pushes { int arrivals = 0, bytes = 0, phase = 0; };

struct Cluster { Barrier barrier; int first; };
struct Block {
  int number;
  unsigned char* shared;
  Cluster* cluster;
  Barrier barrier;
  Exchange warps[THREADS / LANES];
  std::map<unsigned, Exchange> parts[THREADS / LANES];  // by the lanes that take part, where not all do
};
// What a thread waits for: that a phase is over (`*phase` is not `before`), or that `ready` says so.
struct Wait {
  const int* phase = nullptr;
  int before;
  bool (*ready)(const void*) = nullptr;
  const void* of;
  bool is_over() const { return phase ? *phase != before : !ready || ready(of); }
};
struct Thread {
  void* at;  // where it goes on, in its stack
  Wait* wait;
  Block* block;
  int number, meeting = 0;
  bool done = false;
  std::deque<Group> groups;  // of copies, the oldest first
  Group open;
};

static std::vector<Block> blocks;
static std::map<void*, Pushes> pushes;
static Thread* here;
static void* scheduler;  // where that goes on
static int cluster_size, late;
static size_t shared_size;
static int lost = -1;  // the worker whose states reach nobody
static long steps;  // something happened: without any all threads wait for each other

struct Index { int x; };
#define threadIdx (Index{here->number})
#define blockIdx (Index{here->block->number})

// Leaves a stack, where `*from` will say where it goes on, for another one: a call, so that only what calls keep
// is to be kept. Unlike `swapcontext` it asks nothing of the operating system.
extern "C" void switch_stacks(void** from, void* to);
asm(R"(
.text
.hidden switch_stacks
switch_stacks:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");
constexpr int KEPT = 6;  // words that it keeps

static void leave() { switch_stacks(&here->at, scheduler); }

// The scheduler asks whether it is over before it comes back.
static inline void wait_for(const Wait& until) {
  if (!until.is_over()) {
    *here->wait = until;
    leave();
    *here->wait = {};
  }
  ++steps;
}
static inline void wait_for_phase(const int& phase, int before) { wait_for({&phase, before}); }
template <class Ready> static inline void wait_until(Ready ready) {
  wait_for({nullptr, 0, [](const void* own) { return (*(const Ready*)own)(); }, &ready});
}

static inline int meet(Barrier& barrier, int count, int flag = 0) {
  int phase = barrier.phase;
  barrier.flag |= flag;
  ++steps;
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    barrier.found = barrier.flag;
    barrier.flag = 0;
    ++barrier.phase;
  } else {
    wait_for_phase(barrier.phase, phase);
  }
  return barrier.found;
}

static inline int __syncthreads_or(int flag) { return meet(here->block->barrier, THREADS, flag); }
static inline void __syncthreads() { __syncthreads_or(0); }

// What every lane of a warp that takes part has given; all of them wait for the last one.
static inline const Exchange& exchange(unsigned lanes, const uint32_t* words, int count) {
  int warp = here->number / LANES;
  Exchange& own = lanes == ~0u ? here->block->warps[warp] : here->block->parts[warp][lanes];
  int phase = own.phase, lane = here->number % LANES;
  std::copy(words, words + count, own.given[lane]);
  ++steps;
  if (++own.arrived == __builtin_popcount(lanes)) {
    own.arrived = 0;
    memcpy(own.found, own.given, sizeof own.found);
    ++own.phase;
  } else {
    wait_for_phase(own.phase, phase);
  }
  return own;
}

static inline void __syncwarp(unsigned lanes = ~0u) {
  uint32_t none = 0;
  exchange(lanes, &none, 1);
}
template <class T> static inline T shuffled(unsigned lanes, T value, int source) {
  uint32_t word = bits_as<uint32_t>(value);
  return bits_as<T>(exchange(lanes, &word, 1).found[source & (LANES - 1)][0]);
}
template <class T> static inline T __shfl_sync(unsigned lanes, T value, int source, int width = LANES) {
  return shuffled(lanes, value, here->number % LANES / width * width + source % width);
}
template <class T> static inline T __shfl_xor_sync(unsigned lanes, T value, int mask, int width = LANES) {
  return shuffled(lanes, value, (here->number % LANES) ^ mask);
}
static inline unsigned __ballot_sync(unsigned lanes, int flag) {
  uint32_t word = flag != 0, found = 0;
  const Exchange& own = exchange(lanes, &word, 1);
  for (int lane = 0; lane < LANES; ++lane) found |= own.found[lane][0] << lane;
  return found;
}

// ---- primitives: `dnc/codegen/primitives.py`, `dnc/codegen/sync.py` ------------------------------------

static inline int dnc_number_here(int number) { return number; }
static inline int dnc_thread_here() { return here->number; }
static inline float dnc_copy_here(float x) { return x; }
// Stores nothing, as its last argument is not negative.
static inline void dnc_keep_in_banks(float, float, float, float, int never) {
  if (never < 0) abort();
}
static inline float dnc_sigmoid(float x) { return 1.0f / (1.0f + expf(x < -87.0f ? 87.0f : -x)); }
static inline float dnc_round_tf32_here(float x) { return __int_as_float(__float_as_int(x) + 0x1000); }
static inline void dnc_split_tf32_here(float x, float& large, float& rest) {
  large = __int_as_float((__float_as_int(x) + 0x1000) & 0xffffe000);
  rest = x - large;
}
static inline void dnc_load4_relaxed(const float* from, float& a, float& b, float& c, float& d) {
  a = from[0], b = from[1], c = from[2], d = from[3];
}
static inline void dnc_load2_relaxed(const float* from, float& a, float& b) { a = from[0], b = from[1]; }

static inline void copy_now(const Copy& copy) {
  if (copy.from) memcpy(copy.to, copy.from, copy.size);
  else memset(copy.to, 0, copy.size);
}
static inline void start_copy(void* to, const void* from, int size) {
  if (((uintptr_t)to | (uintptr_t)from) % size) {
    fprintf(stderr, "a copy of %d bytes is not aligned\n", size);
    abort();
  }
  if (late) here->open.push_back({to, from, size});
  else copy_now({to, from, size});
}
static inline void dnc_copy4_async(float* to, const float* from, int valid) {
  start_copy(to, valid ? from : nullptr, 16);
}
static inline void dnc_copy1_async(void* to, const void* from) { start_copy(to, from, 4); }
static inline void dnc_copy_commit() {
  here->groups.push_back(std::move(here->open));
  here->open.clear();
}
template <int LEFT> static inline void wait_for_copies() {
  for (; here->groups.size() > LEFT; here->groups.pop_front())
    for (const Copy& copy : here->groups.front()) copy_now(copy);
}
#define COPY_WAIT(left) static inline void dnc_copy_wait##left() { wait_for_copies<left>(); }
COPY_WAIT(0) COPY_WAIT(1) COPY_WAIT(2) COPY_WAIT(3) COPY_WAIT(4) COPY_WAIT(5) COPY_WAIT(6) COPY_WAIT(7)

static inline uint16_t nearest_bf16(float x) {
  uint32_t bits = bits_as<uint32_t>(x);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static inline float dnc_pack_bf16(float low, float high) {
  return bits_as<float>((uint32_t)nearest_bf16(low) | (uint32_t)nearest_bf16(high) << 16);
}
static inline float half_of(uint32_t word, int half) {
  return bits_as<float>(half ? word & 0xffff0000u : word << 16);
}
// d += a b of a warp. left(row, k), right(k, column): the numbers that all lanes have given.
template <int DEPTH, class Left, class Right>
static inline void add_products(float* const (&d)[4], Left left, Right right) {
  int group = here->number % LANES / 4, own = here->number % 4;
  float rows[2][DEPTH], columns[2][DEPTH];
  for (int k = 0; k < DEPTH; ++k)
    for (int i = 0; i < 2; ++i) rows[i][k] = left(group + i * 8, k), columns[i][k] = right(k, own * 2 + i);
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < DEPTH; ++k) *d[i] += rows[i / 2][k] * columns[i % 2][k];
}
static inline void dnc_mma_tf32(float& d0, float& d1, float& d2, float& d3, float a0, float a1, float a2,
                                float a3, float b0, float b1) {
  float words[] = {a0, a1, a2, a3, b0, b1};
  const Exchange& all = exchange(~0u, (uint32_t*)words, 6);
  auto number = [&](int lane, int word) { return bits_as<float>(all.found[lane][word] & 0xffffe000u); };
  add_products<8>({&d0, &d1, &d2, &d3},
                  [&](int row, int k) { return number(row % 8 * 4 + k % 4, row / 8 + k / 4 * 2); },
                  [&](int k, int column) { return number(column * 4 + k % 4, 4 + k / 4); });
}
template <int DEPTH> static inline void mma_bf16(float* const (&d)[4], const float* words) {
  constexpr int HALVES = DEPTH / 8;
  const Exchange& all = exchange(~0u, (const uint32_t*)words, 3 * HALVES);
  auto number = [&](int lane, int word, int k) { return half_of(all.found[lane][word], k % 2); };
  add_products<DEPTH>(
      d, [&](int row, int k) { return number(row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2, k); },
      [&](int k, int column) { return number(column * 4 + k % 8 / 2, 2 * HALVES + k / 8, k); });
}
static inline void dnc_mma_bf16(float& d0, float& d1, float& d2, float& d3, float a0, float a1, float a2,
                                float a3, float b0, float b1) {
  float words[] = {a0, a1, a2, a3, b0, b1};
  mma_bf16<16>({&d0, &d1, &d2, &d3}, words);
}
static inline void dnc_mma_bf16_half(float& d0, float& d1, float& d2, float& d3, float a0, float a1,
                                     float b0) {
  float words[] = {a0, a1, b0};
  mma_bf16<8>({&d0, &d1, &d2, &d3}, words);
}

static inline void dnc_signal(unsigned* counter) {
  __syncthreads();
  if (here->number == 0) ++*counter, ++steps;
}
static inline int dnc_wait(unsigned* counter, unsigned target, unsigned* aborted, unsigned, int, int, int) {
  auto came = [&] { return (int)(*(volatile unsigned*)counter - target) >= 0; };
  if (here->number == 0) wait_until([&] { return came() || *(volatile unsigned*)aborted; });
  return __syncthreads_or(here->number == 0 && !came());
}
// Other devices run in threads of the host.
static inline int dnc_meet_devices(const uint64_t* others, unsigned turn, int device, int devices,
                                   unsigned* aborted, unsigned limit_us, int worker, int instruction,
                                   int exchange) {
  bool failed = false;
  if (here->number == 0) {
    unsigned* own = (unsigned*)others[2 * device + 1];
    for (int each = 0; each < devices; ++each)
      __atomic_store_n((unsigned*)others[2 * each + 1] + 32 * device, turn, __ATOMIC_SEQ_CST);
    auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(limit_us);
    for (int each = 0; each < devices && !failed; ++each)
      while ((int)(__atomic_load_n(own + 32 * each, __ATOMIC_SEQ_CST) - turn) < 0 && !failed)
        sched_yield(), failed = std::chrono::steady_clock::now() > end;
    if (failed) aborted[0] = worker + 1, aborted[1] = instruction, aborted[2] = exchange, aborted[3] = 1;
    ++steps;
  }
  return __syncthreads_or(failed);
}
static inline float* of_device(const uint64_t* others, int device, long long at) {
  return (float*)others[2 * device] + at;
}
static inline void dnc_load4_of(const uint64_t* others, int device, long long at, float& a, float& b, float& c,
                                float& d) {
  const float* from = of_device(others, device, at);
  a = from[0], b = from[1], c = from[2], d = from[3];
}
static inline void dnc_store4_of(const uint64_t* others, int device, long long at, float a, float b, float c,
                                 float d) {
  float* to = of_device(others, device, at);
  to[0] = a, to[1] = b, to[2] = c, to[3] = d;
}
static inline void dnc_store_of(const uint64_t* others, int device, long long at, float value) {
  *of_device(others, device, at) = value;
}
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void dnc_arrive(unsigned* counter) {
  if (here->number == 0) ++*counter, ++steps;
}
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline void dnc_publish(float* to, float value) {
  if (here->block->number != lost) *to = __fadd_rn(value, 0.0f);
  ++steps;
}
static inline void dnc_publish4(float* to, float a, float b, float c, float d) {
  dnc_publish(to, a), dnc_publish(to + 1, b), dnc_publish(to + 2, c), dnc_publish(to + 3, d);
}
// Waits for neighbouring floats; nonzero: in vain.
static inline int poll(const float* from, int count, unsigned* aborted, int worker, int instruction,
                       int exchange) {
  auto came = [&] {
    return std::none_of(from, from + count, [](float x) { return __float_as_uint(x) == 0x80000000u; });
  };
  int polls = 0;
  wait_until([&] {
    if (lost < 0) return came();  // for ever, so that one sees it if nothing comes
    return ++steps, came() || *(volatile unsigned*)aborted || ++polls > MOST_POLLS;
  });
  if (came()) return 0;
  if (!*aborted) aborted[0] = worker + 1, aborted[1] = instruction, aborted[2] = exchange, aborted[3] = 1;
  return 1;
}
static inline int dnc_arrived(const float* from, int waits, unsigned* aborted, unsigned, int worker,
                              int instruction, int exchange, float& a, float& b, float& c, float& d) {
  if (waits && poll(from, 4, aborted, worker, instruction, exchange)) return 1;
  dnc_load4_relaxed(from, a, b, c, d);
  return 0;
}
static inline int dnc_runs_arrived(const float* from, int stride, int last, int waits, unsigned* aborted,
                                   unsigned, int worker, int instruction, int exchange, int count,
                                   float* values) {
  for (int i = 0; i < count && i <= last; ++i) {  // one after another: nothing that has come is taken back
    const float* run = from + (long)i * stride;
    if (waits && poll(run, 1, aborted, worker, instruction, exchange)) return 1;
    values[i] = *run;
  }
  return 0;
}
static inline void dnc_cluster_arrive() {
  Barrier& barrier = here->block->cluster->barrier;
  here->meeting = barrier.phase;
  ++steps;
  if (++barrier.arrived == THREADS * cluster_size) barrier.arrived = 0, ++barrier.phase;
}
static inline void dnc_cluster_arrive_relaxed() { dnc_cluster_arrive(); }
static inline void dnc_cluster_wait() {
  wait_for_phase(here->block->cluster->barrier.phase, here->meeting);
}

static inline void dnc_signals_open(int* first, int count) {
  for (int i = 0; i < count; ++i) pushes[first + 2 * i] = {1, 0, 0};
}
static inline void settle(Pushes& own) {
  if (own.arrivals == 0 && own.bytes == 0) own.arrivals = 1, ++own.phase;
  ++steps;
}
static inline void dnc_signal_expect(int* signal, int bytes) {
  Pushes& own = pushes.at(signal);
  --own.arrivals;
  own.bytes += bytes;
  settle(own);
}
static inline void dnc_signal_wait(int* signal, int parity) {
  Pushes& own = pushes.at(signal);
  wait_until([&] { return own.phase % 2 != parity; });
}
// Where another worker of the cluster has what lies there in this one's shared memory.
template <class T> static inline T* of_peer(T* place, int rank) {
  size_t offset = (unsigned char*)place - here->block->shared;
  if (offset >= shared_size) abort();
  return (T*)(blocks[here->block->cluster->first + rank].shared + offset);
}
static inline void push(float* to, int* signal, int rank, std::initializer_list<float> values) {
  std::copy(values.begin(), values.end(), of_peer(to, rank));
  Pushes& other = pushes.at(of_peer(signal, rank));
  other.bytes -= 4 * values.size();
  settle(other);
}
static inline void dnc_push_to_all(float* to, int* signal, float value, int workers) {
  for (int rank = 0; rank < workers; ++rank) push(to, signal, rank, {value});
}
static inline void dnc_push1(float* to, int* signal, int rank, float a) { push(to, signal, rank, {a}); }
static inline void dnc_push2(float* to, int* signal, int rank, float a, float b) {
  push(to, signal, rank, {a, b});
}
static inline void dnc_push4(float* to, int* signal, int rank, float a, float b, float c, float d) {
  push(to, signal, rank, {a, b, c, d});
}

// `dnc/codegen/bodies/cuda_ending.py`: whether every list has the word that ends it.
static inline int dnc_all_ended(const float* pool, const int* words, int lists, int begins, int ends,
                                int word) {
  int missing = 0;
  for (int list = here->number / LANES; list < lists; list += THREADS / LANES) {
    bool found = false;
    for (int at = words[begins + list]; at < words[ends + list]; ++at)
      found |= pool[4ll * words[at]] == (float)word;
    missing |= !found;
  }
  return !__syncthreads_or(missing);
}

// ---- a launch -----------------------------------------------------------------------------------------

extern "C" void lose(int worker) { lost = worker; }

static void begin();  // calls the kernel; it stands behind this file

static void run_thread() {
  begin();
  here->done = true;
  ++steps;
  leave();
}

// Where a thread begins: as if it had left from the first instruction of `run_thread`.
static void* beginning(char* stack, size_t number) {
  // Stacks whose ends lie as far into the cache as each other would take each other's place there.
  void** end = (void**)(stack + STACK - number * 65 % 1024 * 64);
  *--end = nullptr;  // nobody called it
  *--end = (void*)run_thread;
  return end - KEPT;
}

// 0, or how many threads wait for each other in vain.
static int launch(int grid, int cluster, int shared_bytes, int late_copies, int seed) {
  cluster_size = std::max(cluster, 1), late = late_copies, shared_size = shared_bytes;
  std::vector<Cluster> clusters(grid / cluster_size);
  std::vector<Thread> threads(grid * THREADS);
  std::vector<Wait> waits(threads.size());
  // Kept from launch to launch, and not written in advance: of most of it no thread makes use.
  static std::unique_ptr<char[]> stacks;
  static size_t stacks_size = 0;
  if (stacks_size < threads.size() * STACK) stacks.reset(new char[stacks_size = threads.size() * STACK]);
  blocks = std::vector<Block>(grid);
  pushes.clear();
  for (int number = 0; number < grid; ++number) {
    Block& block = blocks[number];
    block.number = number, block.cluster = &clusters[number / cluster_size];
    block.cluster->first = number / cluster_size * cluster_size;
    block.shared = (unsigned char*)aligned_alloc(128, (shared_bytes + 127) / 128 * 128);
    std::fill_n((uint32_t*)block.shared, shared_bytes / 4, 0x7fc00000u);
    for (int i = 0; i < THREADS; ++i) {
      Thread& thread = threads[number * THREADS + i];
      thread.block = &block, thread.number = i;
      thread.at = beginning(&stacks[(number * THREADS + i) * STACK], number * THREADS + i);
      thread.wait = &waits[number * THREADS + i];
    }
  }
  std::vector<int> order(threads.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  std::vector<std::vector<int>> own(grid);  // of every block
  for (int number : order) own[number / THREADS].push_back(number);
  int left = order.size();
  auto run = [&](const std::vector<int>& some) {
    for (int number : some) {
      here = &threads[number];
      if (!waits[number].is_over() || here->done) continue;
      switch_stacks(&scheduler, here->at);
      left -= here->done;
    }
  };
  // All blocks at about the same pace; or each as far as it comes before the next one begins, from either end:
  // who does not wait for others, and should, is found.
  int way = seed % 3;
  for (int idle = 0; left > 0 && idle < 3;) {
    long before = steps;
    if (way == 0) run(order);
    for (int at = 0; way > 0 && at < grid; ++at) {
      long so_far;
      do so_far = steps, run(own[way == 1 ? at : grid - 1 - at]);
      while (steps != so_far);
    }
    idle = steps == before ? idle + 1 : 0;
  }
  for (Block& block : blocks) free(block.shared);
  return left;
}

#pragma GCC pop_options
