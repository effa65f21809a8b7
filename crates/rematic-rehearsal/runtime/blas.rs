//! cuBLAS and cuBLASLt: matrix products that are not computed. Their workspaces are PyTorch's own, by the card.

use std::ffi::{c_int, c_void};

use super::put;
use super::status::{OK, Status};
use super::streams::{handle, makes, nothing};

type Handle = *mut c_void;

makes! {
    cublasCreate_v2();
    cublasLtCreate();
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGetPointerMode_v2(_handle: Handle, mode: *mut c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(mode, 0) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGetMathMode(_handle: Handle, mode: *mut c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(mode, 0) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGetVersion_v2(_handle: Handle, version: *mut c_int) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(version, BLAS_VERSION) };
    OK
}

/// cuBLAS 13.2, as the version of CUDA.
const BLAS_VERSION: c_int = 130_200;

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    BLAS_VERSION as usize
}

// Descriptions of products: PyTorch makes, fills and destroys them.
makes! {
    cublasLtMatmulDescCreate(c_int, c_int);
    cublasLtMatmulPreferenceCreate();
    cublasLtMatrixLayoutCreate(c_int, u64, u64, i64);
    cublasLtMatrixTransformDescCreate(c_int);
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
pub struct Heuristic {
    algorithm: [u64; 8],
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    _handle: Handle,
    _operation: Handle,
    _a: Handle,
    _b: Handle,
    _c: Handle,
    _d: Handle,
    _preference: Handle,
    _asked: c_int,
    results: *mut Heuristic,
    found: *mut c_int,
) -> Status {
    // One way that needs no workspace.
    // SAFETY: the caller has room for at least one answer.
    unsafe {
        put(results, Heuristic { algorithm: [0; 8], workspace: 0, state: 0, waves: 0.0, reserved: [0; 4] });
        put(found, 1);
    }
    OK
}

nothing! {
    cublasCaxpy cublasCaxpy_v2 cublasCaxpy_v2_64 cublasCcopy_v2 cublasCdotc cublasCdotc_v2 cublasCdotc_v2_64
    cublasCdotu cublasCdotu_v2 cublasCdotu_v2_64 cublasCgelsBatched cublasCgemm cublasCgemm3m cublasCgemm3mBatched
    cublasCgemm3mBatched_64 cublasCgemm3mEx cublasCgemm3mEx_64 cublasCgemm3mStridedBatched
    cublasCgemm3mStridedBatched_64 cublasCgemm3m_64 cublasCgemmBatched cublasCgemmBatched_64 cublasCgemmEx
    cublasCgemmEx_64 cublasCgemmStridedBatched cublasCgemmStridedBatched_64 cublasCgemm_v2 cublasCgemm_v2_64
    cublasCgemv cublasCgemvBatched cublasCgemvBatched_64 cublasCgemvStridedBatched cublasCgemvStridedBatched_64
    cublasCgemv_v2 cublasCgemv_v2_64 cublasCgeqrfBatched cublasCgerc_v2 cublasCgeru_v2 cublasCgetrfBatched
    cublasCgetriBatched cublasCgetrsBatched cublasChemm_v2 cublasChemv_v2 cublasCher2_v2 cublasCher2k_v2
    cublasCher_v2 cublasCherk_v2 cublasCmatinvBatched cublasCrot_v2 cublasCrotg_v2 cublasCscal cublasCscal_v2
    cublasCscal_v2_64 cublasCsrot_v2 cublasCsscal_v2 cublasCswap_v2 cublasCsymm_v2 cublasCsymv_v2 cublasCsyr2_v2
    cublasCsyr2k_v2 cublasCsyr_v2 cublasCsyrk cublasCsyrk3mEx cublasCsyrk3mEx_64 cublasCsyrkEx cublasCsyrkEx_64
    cublasCsyrk_v2 cublasCsyrk_v2_64 cublasCsyrkx cublasCsyrkx_64 cublasCtrmm_v2 cublasCtrmv_v2 cublasCtrsm
    cublasCtrsmBatched cublasCtrsmBatched_64 cublasCtrsm_v2 cublasCtrsm_v2_64 cublasCtrsv_v2 cublasDasum
    cublasDasum_v2 cublasDasum_v2_64 cublasDaxpy cublasDaxpy_v2 cublasDaxpy_v2_64 cublasDcopy_v2 cublasDdot
    cublasDdot_v2 cublasDdot_v2_64 cublasDestroy_v2 cublasDgelsBatched cublasDgemm cublasDgemmBatched
    cublasDgemmBatched_64 cublasDgemmGroupedBatched cublasDgemmGroupedBatched_64 cublasDgemmStridedBatched
    cublasDgemmStridedBatched_64 cublasDgemm_v2 cublasDgemm_v2_64 cublasDgemv cublasDgemvBatched
    cublasDgemvBatched_64 cublasDgemvStridedBatched cublasDgemvStridedBatched_64 cublasDgemv_v2 cublasDgemv_v2_64
    cublasDgeqrfBatched cublasDger_v2 cublasDgetrfBatched cublasDgetriBatched cublasDgetrsBatched
    cublasDmatinvBatched cublasDnrm2 cublasDnrm2_v2 cublasDnrm2_v2_64 cublasDotEx cublasDrot_v2 cublasDrotg_v2
    cublasDrotm_v2 cublasDrotmg_v2 cublasDscal cublasDscal_v2 cublasDscal_v2_64 cublasDswap_v2 cublasDsymm_v2
    cublasDsymv_v2 cublasDsyr2_v2 cublasDsyr2k_v2 cublasDsyr_v2 cublasDsyrk cublasDsyrk_v2 cublasDsyrk_v2_64
    cublasDsyrkx cublasDsyrkx_64 cublasDtrmm_v2 cublasDtrmv_v2 cublasDtrsm cublasDtrsmBatched cublasDtrsmBatched_64
    cublasDtrsm_v2 cublasDtrsm_v2_64 cublasDtrsv_v2 cublasDzasum_v2 cublasDznrm2_v2 cublasGemmEx
    cublasGemmStridedBatchedEx cublasGetMatrixAsync cublasGetVectorAsync cublasHSHgemvBatched
    cublasHSHgemvBatched_64 cublasHSHgemvStridedBatched cublasHSHgemvStridedBatched_64 cublasHSSgemvBatched
    cublasHSSgemvBatched_64 cublasHSSgemvStridedBatched cublasHSSgemvStridedBatched_64 cublasHgemm
    cublasHgemmBatched cublasHgemmBatched_64 cublasHgemmStridedBatched cublasHgemmStridedBatched_64 cublasHgemm_64
    cublasIcamax_v2 cublasIcamin_v2 cublasIdamax_v2 cublasIdamin_v2 cublasIsamax_v2 cublasIsamin_v2 cublasIzamax_v2
    cublasIzamin_v2 cublasLoggerConfigure cublasLtDestroy cublasLtLoggerForceDisable cublasLtLoggerOpenFile
    cublasLtLoggerSetCallback cublasLtLoggerSetFile cublasLtLoggerSetLevel cublasLtLoggerSetMask cublasLtMatmul
    cublasLtMatmulAlgoCapGetAttribute cublasLtMatmulAlgoCheck cublasLtMatmulAlgoConfigGetAttribute
    cublasLtMatmulAlgoConfigGetAttributeRange cublasLtMatmulAlgoConfigSetAttribute cublasLtMatmulAlgoGetIds
    cublasLtMatmulAlgoInit cublasLtMatmulDescDestroy cublasLtMatmulDescGetAttribute cublasLtMatmulDescInit_internal
    cublasLtMatmulDescSetAttribute cublasLtMatmulPreferenceDestroy cublasLtMatmulPreferenceGetAttribute
    cublasLtMatmulPreferenceInit_internal cublasLtMatmulPreferenceSetAttribute cublasLtMatrixLayoutDestroy
    cublasLtMatrixLayoutGetAttribute cublasLtMatrixLayoutInit_internal cublasLtMatrixLayoutSetAttribute
    cublasLtMatrixTransform cublasLtMatrixTransformDescDestroy cublasLtMatrixTransformDescGetAttribute
    cublasLtMatrixTransformDescInit_internal cublasLtMatrixTransformDescSetAttribute cublasSasum cublasSasum_v2
    cublasSasum_v2_64 cublasSaxpy cublasSaxpy_v2 cublasSaxpy_v2_64 cublasScasum_v2 cublasScnrm2_v2 cublasScopy_v2
    cublasSdot cublasSdot_v2 cublasSdot_v2_64 cublasSetAtomicsMode cublasSetBackdoor cublasSetBackdoorEx
    cublasSetEmulationSpecialValuesSupport cublasSetEmulationStrategy cublasSetEnvironmentMode
    cublasSetFixedPointEmulationMantissaBitCountPointer cublasSetFixedPointEmulationMantissaBitOffset
    cublasSetFixedPointEmulationMantissaControl cublasSetFixedPointEmulationMaxMantissaBitCount
    cublasSetKernelStream cublasSetLoggerCallback cublasSetMathMode cublasSetMatrix cublasSetMatrixAsync
    cublasSetMatrixAsync_64 cublasSetMatrix_64 cublasSetPointerMode_v2 cublasSetSmCountTarget cublasSetStream_v2
    cublasSetVector cublasSetVectorAsync cublasSetVectorAsync_64 cublasSetVector_64 cublasSetWorkspace_v2
    cublasSgelsBatched cublasSgemm cublasSgemmBatched cublasSgemmBatched_64 cublasSgemmEx cublasSgemmEx_64
    cublasSgemmGroupedBatched cublasSgemmGroupedBatched_64 cublasSgemmStridedBatched cublasSgemmStridedBatched_64
    cublasSgemm_v2 cublasSgemm_v2_64 cublasSgemv cublasSgemvBatched cublasSgemvBatched_64 cublasSgemvStridedBatched
    cublasSgemvStridedBatched_64 cublasSgemv_v2 cublasSgemv_v2_64 cublasSgeqrfBatched cublasSger_v2
    cublasSgetrfBatched cublasSgetriBatched cublasSgetrsBatched cublasSmatinvBatched cublasSnrm2 cublasSnrm2_v2
    cublasSnrm2_v2_64 cublasSrot_v2 cublasSrotg_v2 cublasSrotm_v2 cublasSrotmg_v2 cublasSscal cublasSscal_v2
    cublasSscal_v2_64 cublasSswap_v2 cublasSsymm_v2 cublasSsymv_v2 cublasSsyr2_v2 cublasSsyr2k_v2 cublasSsyr_v2
    cublasSsyrk cublasSsyrk_v2 cublasSsyrk_v2_64 cublasSsyrkx cublasSsyrkx_64 cublasStrmm_v2 cublasStrmv_v2
    cublasStrsm cublasStrsmBatched cublasStrsmBatched_64 cublasStrsm_v2 cublasStrsm_v2_64 cublasStrsv_v2
    cublasTSSgemvBatched cublasTSSgemvBatched_64 cublasTSSgemvStridedBatched cublasTSSgemvStridedBatched_64
    cublasTSTgemvBatched cublasTSTgemvBatched_64 cublasTSTgemvStridedBatched cublasTSTgemvStridedBatched_64
    cublasZaxpy cublasZaxpy_v2 cublasZaxpy_v2_64 cublasZcopy_v2 cublasZdotc cublasZdotc_v2 cublasZdotc_v2_64
    cublasZdotu cublasZdotu_v2 cublasZdotu_v2_64 cublasZdrot_v2 cublasZdscal_v2 cublasZgelsBatched cublasZgemm
    cublasZgemm3m cublasZgemm3m_64 cublasZgemmBatched cublasZgemmBatched_64 cublasZgemmStridedBatched
    cublasZgemmStridedBatched_64 cublasZgemm_v2 cublasZgemm_v2_64 cublasZgemv cublasZgemvBatched
    cublasZgemvBatched_64 cublasZgemvStridedBatched cublasZgemvStridedBatched_64 cublasZgemv_v2 cublasZgemv_v2_64
    cublasZgeqrfBatched cublasZgerc_v2 cublasZgeru_v2 cublasZgetrfBatched cublasZgetriBatched cublasZgetrsBatched
    cublasZhemm_v2 cublasZhemv_v2 cublasZher2_v2 cublasZher2k_v2 cublasZher_v2 cublasZherk_v2 cublasZmatinvBatched
    cublasZrot_v2 cublasZrotg_v2 cublasZscal cublasZscal_v2 cublasZscal_v2_64 cublasZswap_v2 cublasZsymm_v2
    cublasZsymv_v2 cublasZsyr2_v2 cublasZsyr2k_v2 cublasZsyr_v2 cublasZsyrk cublasZsyrk_v2 cublasZsyrk_v2_64
    cublasZsyrkx cublasZsyrkx_64 cublasZtrmm_v2 cublasZtrmv_v2 cublasZtrsm cublasZtrsmBatched cublasZtrsmBatched_64
    cublasZtrsm_v2 cublasZtrsm_v2_64 cublasZtrsv_v2
}
