// A libnvidia-ml.so.1 without a GPU: it answers what the test wrote into a shared file.
//
// NVML_MOCK_STATE names the file, which holds one `struct state`; MockNvml in ../conftest.py is the
// same layout. Only what the agent calls is here: any other call fails as "function not found".
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_GPUS 8

enum result {
  SUCCESS = 0,
  UNINITIALIZED = 1,
  INVALID_ARGUMENT = 2,
  NOT_FOUND = 6,
  VERSION_MISMATCH = 25,
  UNKNOWN = 999,
};

struct gpu {
  char uuid[80];
  char name[80];
  uint64_t total_bytes, reserved_bytes, used_bytes;
  int32_t error;    // returned by every call on this GPU; 0 = none
  uint32_t hangs;   // while set, calls on this GPU do not return
  uint64_t lookups, memory_reads; // calls so far
};

struct state {
  uint32_t gpu_count;
  int32_t init_error;
  uint64_t inits, shutdowns; // calls so far
  struct gpu gpus[MAX_GPUS];
};

struct memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

static volatile struct state *state;

static int map_state(void) {
  if (state) return SUCCESS;
  const char *path = getenv("NVML_MOCK_STATE");
  int file = path ? open(path, O_RDWR) : -1;
  if (file < 0) return UNKNOWN;
  struct stat facts;
  // Another size means that the test's layout is not this one.
  int fits = fstat(file, &facts) == 0 && facts.st_size == sizeof(struct state);
  void *memory = fits ? mmap(0, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                      : MAP_FAILED;
  close(file);
  if (memory == MAP_FAILED) return UNKNOWN;
  state = memory;
  return SUCCESS;
}

static int enter(volatile struct gpu *gpu) {
  const struct timespec millisecond = {0, 1000000};
  while (gpu->hangs) nanosleep(&millisecond, 0);
  return gpu->error;
}

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  int result = map_state();
  if (result) return result;
  state->inits++;
  return state->init_error;
}

int nvmlShutdown(void) {
  if (!state) return UNINITIALIZED;
  state->shutdowns++;
  return SUCCESS;
}

const char *nvmlErrorString(int result) {
  return result == SUCCESS ? "Success" : "an error of the mock";
}

int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = state->gpu_count;
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, volatile struct gpu **handle) {
  if (index >= state->gpu_count) return INVALID_ARGUMENT;
  *handle = &state->gpus[index];
  (*handle)->lookups++;
  return enter(*handle);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, volatile struct gpu **handle) {
  for (unsigned index = 0; index < state->gpu_count; index++)
    if (strcmp(uuid, (const char *)state->gpus[index].uuid) == 0)
      return nvmlDeviceGetHandleByIndex_v2(index, handle);
  return NOT_FOUND;
}

int nvmlDeviceGetUUID(volatile struct gpu *gpu, char *text, unsigned size) {
  snprintf(text, size, "%s", (const char *)gpu->uuid);
  return enter(gpu);
}

int nvmlDeviceGetName(volatile struct gpu *gpu, char *text, unsigned size) {
  snprintf(text, size, "%s", (const char *)gpu->name);
  return enter(gpu);
}

int nvmlDeviceGetMemoryInfo_v2(volatile struct gpu *gpu, struct memory_v2 *memory) {
  if (memory->version != (sizeof *memory | 2u << 24)) return VERSION_MISMATCH;
  gpu->memory_reads++;
  int result = enter(gpu);
  memory->total = gpu->total_bytes;
  memory->reserved = gpu->reserved_bytes;
  memory->used = gpu->used_bytes;
  memory->free = gpu->total_bytes - gpu->reserved_bytes - gpu->used_bytes;
  return result;
}
