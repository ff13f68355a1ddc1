"""The public names of nvidia-cutlass-operators 0.3.0 by module.

``python tests/support/operator_names.py cutlass.operators FILE`` writes this file where it is
installed.
"""

THEIRS = {
    "": """
        ArchPortability CompiledArtifact CuTeDSLProvider DenseTensor EpilogueArguments GemmArguments
        GlobalOptions GroupedGemmArguments Heuristic IndexPtrGroupedGemmArguments Load Manifest
        NumericLike Operand Operator OperatorMetadata PerformanceControls Provider RuntimeArguments
        ScaleMode ScaleSwizzleMode ScaledOperand Status Store TargetSm TensorLike Transport
        available_heuristics available_providers get_heuristic get_operators mma register_heuristic
        register_provider workspace
    """,
    "arch": """
        ArchPortability TargetSm
    """,
    "arguments": """
        DenseTensor EpilogueArguments GemmArguments GemmProblemSize GroupedGemmArguments
        IndexPtrGroupedGemmArguments IndexPtrGroupedGemmProblemSize Load Operand PerformanceControls
        RuntimeArguments ScaleMode ScaleSwizzleMode ScaledOperand Store Transport
    """,
    "artifact": """
        CompiledArtifact
    """,
    "base": """
        Operator
    """,
    "config": """
        GlobalOptions
    """,
    "fusion": """
        EmptyTensor trace trace_in_out
    """,
    "fusion.activation": """
        gelu hardswish identity leaky_relu relu sigmoid silu tanh
    """,
    "heuristics": """
        Heuristic NvMatmulHeuristics available_heuristics get_heuristic register_heuristic
    """,
    "manifest": """
        Manifest available_providers
    """,
    "metadata": """
        BLASDesignMetadata CLCDynamicPersistentTileSchedulerMetadata DenseTensorConstraints
        DesignMetadata EpilogueMetadata GemmOperandsMetadata GroupedGemmOperandsMetadata
        IndexPtrGroupedGemmOperandsMetadata OperandConstraints OperandsMetadata OperatorMetadata
        ScaledOperandConstraints Sm100DesignMetadata Sm107DesignMetadata
        StaticPersistentTileSchedulerMetadata TileSchedulerMetadata
    """,
    "mma": """
        AmpereMma BlackwellTcgen05Mma BlackwellTcgen05MmaSparse HopperWgmma MmaInstruction
        RubinTcgen05Mma
    """,
    "providers": """
        CuTeDSLProvider Provider available_providers register_provider
    """,
    "status": """
        Status
    """,
    "typing": """
        NumericLike
    """,
    "utils.common": """
        ceil_div is_jax_available is_numpy_available is_torch_available round_up tuple_to_string
    """,
    "utils.device": """
        check_cuda_errors device_cc device_l2_cache_size device_or_env_supports
        device_or_env_target_sm get_cuda_version to_cuda_stream
    """,
    "utils.dtype": """
        cutlass_type_from_jax_type cutlass_type_from_torch_type get_jax_to_cutlass_dtype_map
        get_torch_to_cutlass_dtype_map jax_type_from_cutlass_type to_cutlass_type
        torch_storage_packing_factor torch_type_from_cutlass_type
    """,
    "utils.gemm": """
        strip_batch_mode tensor_output_shape_matches tensor_rank_2_or_3
        tensor_reduction_mode_matches
    """,
    "utils.generate": """
        construct_dense_gemm_operands
    """,
    "utils.layout": """
        LayoutType normalized_col_major normalized_row_major
    """,
    "utils.tensor": """
        TensorWrapper get_stride_order get_stride_rank is_jax_array is_numpy_tensor
        is_torch_fake_tensor is_torch_tensor major_mode major_mode_from_tensor
        normalized_major_stride pre_shuffle_int4_a strides_to_layout_string
    """,
    "workspace": """
        AllocationRequirement Workspace
    """,
}
THEIRS_BY_MODULE = {module: names.split() for module, names in THEIRS.items()}
