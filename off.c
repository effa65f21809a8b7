#include <stddef.h>
#include <stdio.h>
#include "driver_types.h"
#define O(f) printf("%s %zu\n", #f, offsetof(struct cudaDeviceProp, f));
int main(){ printf("size %zu attrs %zu funcattrs %zu\n", sizeof(struct cudaDeviceProp), sizeof(struct cudaPointerAttributes), sizeof(struct cudaFuncAttributes));
O(uuid)O(totalGlobalMem)O(sharedMemPerBlock)O(regsPerBlock)O(warpSize)O(maxThreadsPerBlock)O(maxThreadsDim)O(maxGridSize)O(totalConstMem)O(major)O(minor)O(textureAlignment)O(multiProcessorCount)O(canMapHostMemory)O(concurrentKernels)O(pciBusID)O(asyncEngineCount)O(unifiedAddressing)O(memoryBusWidth)O(l2CacheSize)O(maxThreadsPerMultiProcessor)O(streamPrioritiesSupported)O(sharedMemPerMultiprocessor)O(regsPerMultiprocessor)O(managedMemory)O(cooperativeLaunch)O(sharedMemPerBlockOptin)O(maxBlocksPerMultiProcessor)O(hostRegisterSupported)O(memoryPoolsSupported)O(clusterLaunch)
#undef O
#define O(f) printf("%s %zu\n", #f, offsetof(struct cudaFuncAttributes, f));
O(maxThreadsPerBlock)O(numRegs)O(ptxVersion)O(binaryVersion)O(maxDynamicSharedSizeBytes)
#undef O
#define O(f) printf("%s %zu\n", #f, offsetof(struct cudaPointerAttributes, f));
O(type)O(device)O(devicePointer)O(hostPointer)
}
