/* A libnvidia-ml.so.1 for tests: the C ABI that nvidia-ml-py calls, over invented GPUs. One translation unit:

     gcc -shared -fPIC -O2 -pthread -o libnvidia-ml.so.1 nvml.c

   The file named by FAKE_NVML_STATE decides every answer and is read again whenever it changes. Where there is a second file of that
   name and ".version", the change is announced by another number in its first four bytes, which is cheaper to see than a file's times:

     count 2                         GPUs
     driver 580.65.06                version; when it changes, sessions die until they call nvmlInit again, as after a reload
     gone 1                          no driver: nvmlInit says DRIVER_NOT_LOADED, everything else UNINITIALIZED
     gpu0.power 250000               a value, in NVML's unit; or "err:3" to fail with that return code
     gpu0.field.138 1000 ull         a field value and its type (d ui ul ull sll si us; ui if not said); ".field.161@3" for a scope
     gpu0.gpm.2 40                   a GPM metric; "10,50,90" are those of one pair of adjacent samples after the other, in turns
     gpu0.samples.1 93,10            nvmlDeviceGetSamples: one value after the other every samples_period_us (100000), in turns;
                                     on a wall clock that is samples_shift_us ahead; the driver keeps the last samples_kept (100);
                                     with samples_in_pairs, two neighbours have one time stamp
     gpu0.process.0 compute 77 1024 0 0   kind, pid, bytes ("-" hidden), GPU instance, compute instance ("-" none)
     gpu0.process_util.0 77 40 10 0 0     pid, SM, memory, encoder, decoder
     gpu0.xid.0 79                   Xid errors; those appended after a listener registered are events for it
     gpu0.nvlinks 18                 NVLinks, up unless "gpu0.nvlink.3 0"
     gpu0.mig 1                      MIG mode; devices are gpu0.mig.0.uuid, .name, .gi, .ci, .memory_total, .gpm.2 ...
     gpu1.lost 1                     every call for that GPU says GPU_IS_LOST
     call.nvmlDeviceGetPowerUsage    "hang" (for as long as it says so), "lock" (hangs and holds the lock that all calls of a process
                                     need), "slow:250" (milliseconds), "err:999"; for all GPUs
     call.nvmlDeviceGetPowerUsage@1  the same for one GPU

   FAKE_NVML_COUNTS names a file, shared by all processes, in which calls are counted by name. -DDRIVER=470 builds a driver of that
   branch: it lacks the symbols that came later. */

#define _GNU_SOURCE
#ifndef DRIVER
#define DRIVER 580
#endif

#include "state.c"

#include "device.c"
#include "events.c"
#include "gpm.c"
#include "processes.c"
#include "system.c"
